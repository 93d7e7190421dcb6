"""What product-key memory adds: the best of many slots by half keys, batch norm that counts once, and its usage."""

import math

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from forked import fork_server
from tiny import EXACT, tiny_config, tiny_model, tokens
from torch.nn import functional as F

from transformers_xl.modeling.layers.product_key_memory import ProductKeyMemory, QueryBatchNorm

FIELDS = {"num_memory_keys": 7, "memory_key_dim": 6, "memory_heads": 3, "memory_topk": 4}


def memory_layer(**fields) -> ProductKeyMemory:
    torch.manual_seed(0)
    memory = ProductKeyMemory(tiny_config("pkm_transformer", **(FIELDS | fields))).double()
    for parameter in memory.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return memory


def read_all_slots(memory: ProductKeyMemory, hidden_states: torch.Tensor) -> torch.Tensor:
    """Every slot's score, one token and head at a time; the best of them all."""
    norm, outputs = memory.query_net.norm, []
    rows = memory.query_net.proj(hidden_states.flatten(0, 1))
    if memory.training:
        rows = F.batch_norm(rows, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)
    else:
        rows = F.batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    for row in rows:
        output = 0.0
        for head, query in enumerate(row.unflatten(0, (memory.heads, -1))):
            first, second = memory.keys[head]
            slots = [torch.cat([a, b]) for a in first for b in second]
            best, chosen = (torch.stack(slots) @ query).topk(memory.topk)
            output = output + best.softmax(0) @ memory.values.weight[chosen]
        outputs.append(output)
    return torch.stack(outputs).view_as(hidden_states)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("fields", [{}, {"memory_topk": 1}, {"memory_topk": 7}, {"memory_heads": 1}], ids=str)
def test_half_keys_find_the_best_of_all_slots(training, fields):
    memory = memory_layer(**fields).train(training)
    with torch.no_grad():
        memory.query_net.norm.running_mean.normal_()
        memory.query_net.norm.running_var.uniform_(0.5, 2.0)
    hidden_states = torch.randn(3, 5, 32, dtype=torch.float64, requires_grad=True)
    expected = read_all_slots(memory, hidden_states)
    output, _ = memory(hidden_states)
    torch.testing.assert_close(output, expected, **EXACT)
    direction, inputs = torch.randn_like(output), [hidden_states, *memory.parameters()]
    gradients, wanted = (torch.autograd.grad((y * direction).sum(), inputs) for y in (output, expected))
    torch.testing.assert_close(gradients, wanted, **EXACT)


def test_the_memory_stands_in_the_chosen_layers_only():
    model = tiny_model("pkm_transformer", num_hidden_layers=4, memory_layers=[1, 3], **FIELDS)
    assert [isinstance(layer.mlp, ProductKeyMemory) for layer in model.layers] == [False, True, False, True]
    assert tiny_config("pkm_transformer", num_hidden_layers=4).memory_layers == [2]
    for fields, name in (
        ({"memory_layers": [2]}, "memory_layers"),
        ({"memory_topk": 129}, "memory_topk"),
        ({"memory_key_dim": 5}, "memory_key_dim"),
        ({"memory_heads": 0}, "memory_heads"),
    ):
        with pytest.raises(ValueError, match=f"`{name}`"):
            tiny_config("pkm_transformer", **fields)


def test_batch_norm_is_that_of_torch_over_real_tokens():
    rows, real = torch.randn(12, 5, dtype=torch.float64), torch.rand(12) < 0.7
    ours, theirs = QueryBatchNorm(5).double(), torch.nn.BatchNorm1d(5).double()
    for _ in range(3):
        torch.testing.assert_close(ours(rows, real)[real], theirs(rows[real]), **EXACT)
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(getattr(ours, name), buffer, **EXACT)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(rows), theirs(rows), **EXACT)


def test_a_frozen_norm_keeps_its_statistics():
    """An adapter trains beside it, and is saved without it."""
    model = tiny_model("pkm_transformer", **FIELDS).train()
    model(tokens(2, 9))  # statistics of something
    model.layers[1].mlp.query_net.norm.requires_grad_(False)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    trained = model(tokens(2, 9)).last_hidden_state
    torch.testing.assert_close(dict(model.named_buffers()), before, **EXACT)
    torch.testing.assert_close(trained, model.eval()(tokens(2, 9)).last_hidden_state, **EXACT)


def test_padding_does_not_move_the_statistics():
    model = tiny_model("pkm_transformer", **FIELDS).train()
    norm = model.layers[1].mlp.query_net.norm
    ids = tokens(2, 9)
    model(ids[:, :6])
    expected = norm.running_mean.clone()
    norm.reset_running_stats()
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[:, 6:] = 0
    model(ids, attention_mask=mask)
    torch.testing.assert_close(norm.running_mean, expected, **EXACT)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_statistics_move_once_under_activation_checkpointing(use_reentrant):
    results = []
    for checkpointing in (False, True):
        model = tiny_model("pkm_transformer", **FIELDS).train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        embeds = model.embed_tokens(tokens(3, 6)).detach().requires_grad_()
        for _ in range(2):
            model(inputs_embeds=embeds).last_hidden_state.square().sum().backward()
        norm = model.layers[1].mlp.query_net.norm
        assert norm.num_batches_tracked == 2
        results.append((dict(norm.named_buffers()), {n: p.grad for n, p in model.named_parameters()}))
    torch.testing.assert_close(results[1], results[0], **EXACT)


def one_of_two(rank: int, folder: str) -> None:
    """Rows `rank` and `rank + 2` of a batch of four in one of two processes."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.save(distributed_step(torch.load(f"{folder}/inputs.pt")[rank::2].requires_grad_()), f"{folder}/{rank}.pt")
    # the wrapped layer is gone by now: what it holds of the group may not be freed after the group
    dist.barrier()
    dist.destroy_process_group()


def distributed_step(hidden_states: torch.Tensor) -> dict:
    memory = torch.nn.parallel.DistributedDataParallel(memory_layer())
    output, _ = memory(hidden_states)
    output.square().sum().backward()
    result = {"output": output.detach(), "grad": hidden_states.grad, "buffers": dict(memory.module.named_buffers())}
    result["gradients"] = {name: parameter.grad for name, parameter in memory.module.named_parameters()}
    return result


def test_statistics_are_those_of_all_processes(tmp_path):
    """Two processes with half of the rows each are one process with all of them."""
    hidden_states = torch.randn(4, 5, 32, dtype=torch.float64)
    torch.save(hidden_states, tmp_path / "inputs.pt")
    mp.start_processes(one_of_two, args=(str(tmp_path),), nprocs=2, start_method=fork_server().get_start_method())
    memory = memory_layer()
    hidden_states.requires_grad_()
    output, _ = memory(hidden_states)
    output.square().sum().backward()
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(found["output"], output[rank::2].detach(), **EXACT)
        torch.testing.assert_close(found["grad"], hidden_states.grad[rank::2], **EXACT)
        torch.testing.assert_close(found["buffers"], dict(memory.named_buffers()), **EXACT)
        for name, parameter in memory.named_parameters():  # DDP takes the mean over processes
            torch.testing.assert_close(found["gradients"][name] * 2, parameter.grad, **EXACT)


@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
def test_key_usage(use_cache):
    """Counted by hand, over real tokens only; also from the heads, and as a tuple."""
    model = tiny_model("pkm_transformer", "causal_lm", num_hidden_layers=3, memory_layers=[0, 2], **FIELDS)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    reads = []
    for layer in (0, 2):
        model.model.layers[layer].mlp.register_forward_hook(
            lambda module, arguments, output: reads.append(module.query_net(arguments[0].flatten(0, 1), None))
        )
    ids = tokens(2, 5)
    output = model(ids, attention_mask=mask, output_key_usage=True, use_cache=use_cache)
    assert len(output.key_usage) == 2
    real = mask.flatten().bool()  # padding stands after the tokens inside, as here
    for usage, query, layer in zip(output.key_usage, reads, (0, 2), strict=True):
        memory = model.model.layers[layer].mlp
        scores, slots = memory.best_slots(query.unflatten(-1, (memory.heads, -1)))
        share = [0.0] * 49
        for row in real.nonzero().flatten().tolist():
            for slot, weight in zip(slots[row].flatten(), scores[row].softmax(-1).flatten(), strict=True):
                share[slot] += weight.item()
        total = sum(share)
        kl = sum(s / total * math.log(s / total * 49) for s in share if s)
        assert usage.used.item() == pytest.approx(sum(s > 0 for s in share) / 49)
        assert usage.kl.item() == pytest.approx(kl)
    assert "key_usage" not in model(ids)
    assert model(ids, output_key_usage=True, return_dict=False)[-1][0].used.item() > 0


def test_sparse_values_train_with_sparse_adam():
    """The gradient is the dense one, and a step moves only the slots that were read."""
    gradients = []
    for sparse in (False, True):
        memory = memory_layer(sparse_values=sparse)
        torch.manual_seed(1)
        memory(torch.randn(2, 3, 32, dtype=torch.float64))[0].square().sum().backward()
        assert memory.values.weight.grad.is_sparse == sparse
        gradients.append(memory.values.weight.grad.to_dense() if sparse else memory.values.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0], **EXACT)
    before = memory.values.weight.detach().clone()
    torch.optim.SparseAdam([memory.values.weight], lr=0.1).step()
    moved = (memory.values.weight != before).any(dim=1)
    assert torch.equal(moved, gradients[0].any(dim=1))
    assert 0 < moved.sum() < 49
