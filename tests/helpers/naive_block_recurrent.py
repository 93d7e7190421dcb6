"""The Block-Recurrent Transformer in a loop over tokens: all layers of a token, then the states behind a block."""

import math

import torch


class Naive:
    """Reads one row from its beginning.

    Args:
        parameters: of a language model, by their names; gradients reach them.
        config: of the model: pre-norm, without biases of attention.
    """

    def __init__(self, parameters: dict[str, torch.Tensor], config):
        self.of, self.config = parameters, config
        self.heads, self.dim = config.num_attention_heads, config.head_dim
        layers = range(config.num_hidden_layers)
        zeros = config.mem_len if config.initial_memory == "zeros" else 0
        nothing = self["model.norm.weight"].new_zeros(self.heads, self.dim)
        self.keys = {layer: [nothing] * zeros for layer in layers}
        self.values = {layer: [nothing] * zeros for layer in layers}
        recurrent = getattr(config, "recurrent_layers", ())  # the Memorizing Transformer has the rest
        self.states = {layer: self[f"model.layers.{layer}.state.start.weight"] for layer in recurrent}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.of[name]

    def rms(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean() + self.config.layer_norm_eps).sqrt() * self[f"{name}.weight"]

    def split(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return (self[f"{name}.weight"] @ x).view(self.heads, self.dim)

    def unit(self, x: torch.Tensor, name: str) -> torch.Tensor:
        x = self.split(x, name)
        return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()

    def attend(self, query, keys: list, values: list, scale: str, biases: list | None = None) -> torch.Tensor:
        """What one query finds, `(heads x dim,)`, in keys `(heads, dim)` with a bias `(heads,)` each."""
        if not keys:
            return torch.zeros_like(query).flatten()
        scores = torch.einsum("hd,nhd->nh", query, torch.stack(keys))
        scores = scores if biases is None else scores + torch.stack(biases)
        weights = (scores * self[f"{scale}.weight"].abs()).softmax(0)
        return torch.einsum("nh,nhd->hd", weights, torch.stack(values)).flatten()

    def bucket(self, distance: int) -> int:
        count, exact = self.config.relative_attention_num_buckets, self.config.relative_attention_num_buckets // 2
        if distance < exact:
            return distance
        share = math.log(distance / exact) / math.log(self.config.relative_attention_max_distance / exact)
        return min(exact + int(share * (count - exact)), count - 1)

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits `(length, vocab)`."""
        logits = []
        for position, token in enumerate(ids):
            x = self["model.embed_tokens.weight"][token] * self.config.hidden_size**0.5
            for layer in range(self.config.num_hidden_layers):
                x = self.layer(x, layer)
            x = self.rms(x, "model.norm")
            logits.append(self["lm_head.weight"] @ x + self["lm_head.bias"])
            if (position + 1) % self.config.block_length == 0:
                self.states = {layer: self.written(layer) for layer in self.states}
        return torch.stack(logits)

    def layer(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        config, name = self.config, f"model.layers.{layer}"
        normed = self.rms(x, f"{name}.input_layernorm")
        keys, values = self.keys[layer], self.values[layer]
        keys.append(self.unit(normed, f"{name}.self_attn.k_proj"))
        values.append(self.split(normed, f"{name}.self_attn.v_proj"))
        nearest = 0 if config.attend_to_self else 1
        seen = [d for d in range(nearest, nearest + config.mem_len) if d < len(keys)]
        table = self[f"{name}.self_attn.relative_attention_bias.weight"]
        query, biases = self.unit(normed, f"{name}.self_attn.q_proj"), [table[self.bucket(d)] for d in seen]
        keys, values = [keys[-1 - d] for d in seen], [values[-1 - d] for d in seen]
        found = self.attend(query, keys, values, f"{name}.self_attn.attention_scale", biases)
        if layer in self.states or getattr(config, "feedback", False):
            read = layer if layer in self.states else max(self.states)
            cross = self.unit(normed, f"{name}.self_attn.cross_q_proj")
            of_state = self.attend(cross, *self.of_state(read), f"{name}.self_attn.cross_attention_scale")
            found = torch.cat([found, of_state])
        x = x + self[f"{name}.self_attn.o_proj.weight"] @ found
        inner = self[f"{name}.mlp.fc1.weight"] @ self.rms(x, f"{name}.post_attention_layernorm")
        inner = (inner + self[f"{name}.mlp.fc1.bias"]).relu()
        return x + self[f"{name}.mlp.fc2.weight"] @ inner + self[f"{name}.mlp.fc2.bias"]

    def placed(self, layer: int) -> list[torch.Tensor]:
        """Each vector of a state, normalised, with its place added."""
        name = f"model.layers.{layer}.state"
        places = self[f"{name}.position_embeddings.weight"]
        return [
            self.rms(vector, f"{name}.input_layernorm") + place
            for vector, place in zip(self.states[layer], places, strict=True)
        ]

    def of_state(self, layer: int) -> tuple[list, list]:
        """Keys and values of a state."""
        name, vectors = f"model.layers.{layer}.state.attn", self.placed(layer)
        return [self.unit(v, f"{name}.k_proj") for v in vectors], [self.split(v, f"{name}.v_proj") for v in vectors]

    def gate(self, name: str, old, candidate, inner) -> torch.Tensor:
        if self.config.state_gate == "fixed":
            share = self[f"{name}.gate_bias"].sigmoid()
            return share * old + (1 - share) * candidate
        forget, add = (
            self[f"{name}.{gate}_gate.weight"] @ inner + self[f"{name}.{gate}_gate.bias"]
            for gate in ("forget", "input")
        )
        return (forget + 1).sigmoid() * old + (add - 1).sigmoid() * candidate

    def written(self, layer: int) -> torch.Tensor:
        """The state behind a block: it reads itself, the block and the window before it."""
        config, name = self.config, f"model.layers.{layer}.state"
        keys, values = (each[layer][-config.block_length - config.mem_len :] for each in (self.keys, self.values))
        own, vectors = self.of_state(layer), []
        for old, placed in zip(self.states[layer], self.placed(layer), strict=True):
            query, cross = (self.unit(placed, f"{name}.attn.{kind}_proj") for kind in ("q", "cross_q"))
            of_itself = self.attend(query, *own, f"{name}.attn.attention_scale")
            found = torch.cat([of_itself, self.attend(cross, keys, values, f"{name}.attn.cross_attention_scale")])
            new = old
            if config.state_update != "single":
                new = self.gate(f"{name}.attn_gate", new, self[f"{name}.attn.o_proj.weight"] @ found, found)
            if config.state_update != "skip":
                single = config.state_update == "single"
                inner = found if single else self.rms(new, f"{name}.mlp_layernorm")
                inner = (self[f"{name}.mlp.fc1.weight"] @ inner).relu()
                candidate = self[f"{name}.mlp.fc2.weight"] @ inner
                new = self.gate(f"{name}.mlp.gate", new, candidate.tanh() if single else candidate, inner)
            vectors.append(new)
        return torch.stack(vectors)
