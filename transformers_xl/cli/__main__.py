"""`python -m transformers_xl.cli`: the command as a module, which `torchrun -m` and `accelerate launch -m` start."""

from transformers_xl.cli.main import app

if __name__ == "__main__":
    app(prog_name="transformers-xl")
