"""Tests ELLE's domain prompts: which text gets which prompt, which parameters train, growth, and refused settings."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from adapt.config import Config, CorpusConfig, EvaluationConfig, TrainingConfig
from adapt.method.base import Added, Setting
from adapt.method.domain_sets import sample_of
from adapt.method.elle.grown_model import grown
from adapt.method.elle.growth import Growth
from adapt.method.elle.method import TEXT, Elle, ElleOptions
from adapt.model.additions.domain_modules import attach_domains, domains_of, prototype_of, sets_of
from adapt.model.additions.prompts import attach_prompts
from adapt.model.load import load_model, save_model
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.objective import Batch
from adapt.support.errors import AdaptError
from tests.method.elle.test_past_text import text_folder
from tests.method.lora.test_method import logits
from tests.model.families import FAMILIES, ready
from tests.train.toy import Objective, columns, model, with_room

STEPS = 10


def elle(**options: Any) -> Elle:
    return Elle(ElleOptions(**{"layers": [], "heads": [], "prompt_length": 2, "recovery_fraction": 1.0, **options}))


def second(tmp_path: Path) -> tuple[Elle, Any]:
    """Prepares training on a second domain, in which all steps replay text of the first domain."""
    toy: Any = with_room(model(), 2)
    past = {f"{TEXT}1": text_folder(tmp_path, 1)}
    toy = elle().prepare_model(toy.eval(), Setting(domain="first", number=1, length=STEPS))
    method = elle()
    return method, method.prepare_model(toy, Setting(domain="second", number=2, length=STEPS, past=past))


def parts() -> list[Any]:
    return Objective().corrupt(Batch.of(columns(0))).split(3)


def test_everything_trains_except_the_prompts_of_earlier_domains(tmp_path: Path) -> None:
    _, toy = second(tmp_path)
    prompts = sets_of(toy)[0]
    assert prompts.chosen == 1
    assert {name for name, each in toy.named_parameters() if not each.requires_grad} == {"bert.prompts.0.vectors"}


def test_each_text_has_the_prompt_of_its_own_domain(tmp_path: Path) -> None:
    method, toy = second(tmp_path)
    prompts: Any = sets_of(toy)[0]

    def total() -> float:
        with torch.no_grad():
            return sum(float(loss) for loss, _ in method.losses(toy, parts(), Objective(), 1, predictions=37))

    def changed_by(number: int) -> bool:
        before, kept = total(), prompts[number].vectors.detach().clone()
        with torch.no_grad():
            # flip the vector, because the layer norm would remove an added constant
            prompts[number].vectors.copy_(kept.flip(-1))
        found = total() != before
        with torch.no_grad():
            prompts[number].vectors.copy_(kept)
        return found

    toy.eval()
    assert [changed_by(number) for number in (0, 1)] == [True, False]
    method._past = None
    assert [changed_by(number) for number in (0, 1)] == [False, True]
    assert prompts.chosen == 1


def test_an_unused_prompt_has_a_gradient_of_0(tmp_path: Path) -> None:
    """Checks that an unused prompt has gradient 0, not None, so that the optimizer does the same at all ZeRO stages."""
    method, toy = second(tmp_path)
    for loss, extra in method.losses(toy, parts(), Objective(), 1, predictions=37):
        assert extra is not None
        (loss + extra).backward()
    own = sets_of(toy)[0][1].vectors
    assert own.grad is not None
    assert not own.grad.any()


def test_prototypes_are_computed_with_the_model_before_the_training(tmp_path: Path) -> None:
    toy: Any = with_room(model(), 2)
    toy = elle().prepare_model(toy.eval(), Setting(domain="first", number=1, length=STEPS))
    with torch.no_grad():
        for parameter in toy.parameters():
            parameter *= 1.5
    text = text_folder(tmp_path, 1)
    setting = Setting(domain="second", number=2, length=STEPS, past={f"{TEXT}1": text}, texts=(text,))
    known = domains_of(elle().prepare_model(toy, setting))
    assert known is not None
    assert known.names == ["first", "second"]
    torch.testing.assert_close(known.vectors[0], prototype_of(toy, sample_of([text], 0)))
    # the prompts are equal, because both domains have the same text in this test
    assert torch.equal(known.vectors[0], known.vectors[1])


@pytest.mark.parametrize("family", [*FAMILIES])
def test_a_larger_model_computes_the_same_with_its_prompts(family: str) -> None:
    small: Any = ready(family)
    attach_domains(small, ["first", "second"])
    attach_prompts(small, 2, 3)
    with torch.no_grad():
        for number, prompt in enumerate(sets_of(small)[0]):
            vectors: Any = prompt.vectors
            vectors.normal_(generator=torch.Generator().manual_seed(number))
        domains_of(small).vectors.normal_()  # type: ignore[union-attr]
    large = grown(small, Growth(1, 2))
    assert domains_of(large).names == ["first", "second"]  # type: ignore[union-attr]
    for number in range(2):
        for each in (small, large):
            sets_of(each)[0].chosen = number
        torch.testing.assert_close(logits(large), logits(small), rtol=1e-4, atol=1e-4)
    near, far = (torch.cdist(known.vectors, known.vectors) for known in map(domains_of, (small, large)) if known)
    torch.testing.assert_close(far, near * 2**0.5)  # each component occurs twice in the larger model


def test_prompts_are_saved_and_loaded_with_the_larger_model(tiny_bert: Path, tmp_path: Path) -> None:
    method = elle(layers=[1], heads=[2])
    learnt = method.prepare_model(load_model(tiny_bert), Setting(domain="first", number=1))
    save_model(tiny_bert, learnt.state_dict(), load_tokenizer(tiny_bert), tmp_path / "one", resize=method.resize)
    loaded: Any = load_model(tmp_path / "one")
    assert loaded.config.num_hidden_layers == 3
    assert torch.equal(sets_of(loaded)[0][0].vectors, sets_of(learnt)[0][0].vectors)
    assert domains_of(loaded).names == ["first"]  # type: ignore[union-attr]
    again = elle(heads=[0, 4]).prepare_model(loaded, Setting(domain="second", number=2))
    assert len(sets_of(again)[0]) == 2
    assert sets_of(again)[0][0].vectors.shape == (2, 2 * loaded.config.hidden_size)


def check(folder: Path, length: int = 2, training: int = 32, streaming: bool = False) -> None:
    config = Config(
        corpus=CorpusConfig(streaming=streaming),
        training=TrainingConfig(sequence_length=training),
        evaluation=EvaluationConfig(sequence_length=32),
    )
    elle(prompt_length=length).check(config, folder)


def write_config(folder: Path, *additions: dict[str, Any]) -> Path:
    config = {"model_type": "bert", "max_position_embeddings": 128, "additions": additions}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_prompts_that_cannot_work_are_refused(tmp_path: Path) -> None:
    made, named = {"kind": "prompts", "sets": 1, "length": 2}, {"kind": "domains", "names": ["cs"]}
    check(write_config(tmp_path), 2, 126)
    check(write_config(tmp_path), 0, 128, streaming=True)
    check(write_config(tmp_path, made, named))
    faults: list[tuple[dict[str, Any], str]] = [
        ({"length": 128}, r"elle.prompt_length is 128, but the model takes at most 128 tokens"),
        (
            {"training": 127},
            r"training.sequence_length is 127, but with a prompt of 2 vectors the model takes at most 126",
        ),
        ({"streaming": True}, r"the mean embedding of a domain is measured on prepared text"),
    ]
    for given, words in faults:
        with pytest.raises(AdaptError, match=words):
            check(write_config(tmp_path), **given)
    with pytest.raises(AdaptError, match=r"elle.prompt_length is 3, but the prompts of .* have 2 vectors"):
        check(write_config(tmp_path, made, named), 3)
    with pytest.raises(AdaptError, match=r"cannot be grown \(method\.kind elle\): it carries prompts, domains"):
        check(write_config(tmp_path, made, named), 0)


def test_prompts_add_passes_per_document() -> None:
    assert elle(prompt_length=3).added_passes() == Added(per_document=3)
    assert elle(prompt_length=3).by_domain
    assert not elle(prompt_length=0).by_domain
