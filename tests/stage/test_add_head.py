"""Tests of `model.head: new`, which adds a language-model head to a model without one."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import MPNetConfig, MPNetForMaskedLM

from adapt.config import Config, MethodConfig, MixtureConfig, ModelConfig, PhaseConfig, StorageConfig
from adapt.evaluate.measure_model import trained_on
from adapt.job.measuring_jobs import extend, trim
from adapt.job.training_jobs import dapt_stages
from adapt.method.table import METHODS
from adapt.model.locate import Pretrained
from adapt.model.start import Start
from adapt.runner import Stage, Store, ensure
from adapt.runner.record import load_record
from adapt.stage.add_head import AddHead, RedrawTop, TurnDecoder
from adapt.stage.context import Context
from adapt.stage.export_model import Export
from adapt.stage.train import Train
from adapt.support.errors import ConfigError, ModelError
from tests.drive import ROOT, run_forked
from tests.job.worlds import dapt_world
from tests.samples import sentences, write


@pytest.fixture
def bare(tiny_bert: Path, tmp_path: Path) -> Path:
    """Returns a sentence-transformers folder that contains the tiny BERT without its language-model head."""
    folder = tmp_path / "minilm"
    inner = folder / "0_Transformer"
    inner.mkdir(parents=True)
    for file in tiny_bert.iterdir():
        (inner / file.name).write_bytes(file.read_bytes())
    weights = load_file(tiny_bert / "model.safetensors")
    body = {name.removeprefix("bert."): value for name, value in weights.items() if name.startswith("bert.")}
    save_file(body, inner / "model.safetensors", {"format": "pt"})
    settings = json.loads((inner / "config.json").read_text())
    (inner / "config.json").write_text(json.dumps({**settings, "architectures": ["BertModel"]}))
    modules = [
        {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.fixture
def config(bare: Path, tmp_path: Path) -> Config:
    corpus = write(tmp_path / "corpus.jsonl", [{"text": text} for text in sentences(120)])
    plain = Config(name="headed", model=ModelConfig(path=str(bare), head="new"))
    return replace(
        plain,
        corpus=replace(plain.corpus, paths=corpus, heldout_fraction=0.2),
        training=replace(plain.training, sequence_length=32, global_batch_size=4, max_steps=4),
        evaluation=replace(plain.evaluation, sequence_length=32),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def added(config: Config) -> AddHead:
    stage = Context.of(config).start.head
    assert isinstance(stage, AddHead)
    return stage


def test_its_key_depends_on_the_model_alone(config: Config) -> None:
    stage = added(config)
    assert stage.key == added(replace(config, seed=5, name="other")).key
    stage.refuse_early()


def test_what_it_cannot_do_is_refused_early(config: Config, tiny_bert: Path) -> None:
    with pytest.raises(ModelError, match="lacks weights of its language model"):
        dapt_stages(Context.of(replace(config, model=replace(config.model, head="require")))).training.refuse_early()
    dapt_stages(Context.of(config)).training.refuse_early()
    with pytest.raises(ModelError, match="has a masked-language-model head"):
        added(replace(config, model=ModelConfig(path=str(tiny_bert), head="new"))).refuse_early()
    causal = replace(config, objective=replace(config.objective, kind="causal"))
    with pytest.raises(ConfigError, match=r"model\.head new makes a head for masked tokens"):
        added(causal).refuse_early()
    with pytest.raises(ConfigError, match=r"head_warmup_steps trains a new head first, but model\.head is not new"):
        Context.of(replace(config, model=ModelConfig(path=str(tiny_bert), head_warmup_steps=3)))


def test_a_head_is_found_early_in_a_model_without_a_known_name_of_the_head(tiny_bert: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = MPNetForMaskedLM(MPNetConfig(vocab_size=50, **sizes))
    for name, part in {"whole": model, "bare": model.mpnet}.items():
        part.save_pretrained(tmp_path / name)
    whole, bare = (
        AddHead("new", False, Start(Pretrained(tmp_path / name, tiny_bert), None)) for name in ("whole", "bare")
    )
    bare.refuse_early()
    with pytest.raises(ModelError, match="has a masked-language-model head"):
        whole.refuse_early()


def test_new_top_layers_are_a_stage_before_the_first_training(tiny_bert: Path, config: Config) -> None:
    """The layers are initialized after a new head is added. Later training runs start from the trained layers."""
    plain = replace(config, model=ModelConfig(path=str(tiny_bert), reinitialize_top=1))
    context = Context.of(plain)
    export = dapt_stages(context)
    top = export.training.start.training
    assert isinstance(top, RedrawTop)
    top.refuse_early()
    assert export.before.start.training == top
    assert top.key != RedrawTop.of(replace(plain, seed=5), context.start).key
    headed = Context.of(replace(config, model=replace(config.model, reinitialize_top=1, head_warmup_steps=2)))
    training = dapt_stages(headed).training
    assert (training.head_warmup, training.number) == (2, 1)
    ensure(top, Store(Path(config.storage.root)))
    record = load_record(context.store.folder_of(top))
    assert record
    assert (record.metrics["layers"], trained_on(record)) == (1, None)
    deep = RedrawTop.of(replace(plain, model=replace(plain.model, reinitialize_top=9)), context.start)
    with pytest.raises(ConfigError, match="reinitialize_top is 9, but the model has 2 layers"):
        deep.refuse_early()


def test_nothing_is_known_of_the_text_behind_a_model_with_a_new_head(config: Config) -> None:
    context = Context.of(config)
    assert context.start.head
    ensure(context.start.head, Store(Path(config.storage.root)))
    record = load_record(context.store.folder_of(context.start.head))
    assert record
    assert trained_on(record) is None


def with_own_tokenizer(context: Context, stage: Stage[Any]) -> Context:
    """Returns the context of a job that starts from the model and the tokenizer of a stage."""
    return replace(context, start=context.start.after(stage, own_tokenizer=True))


def test_only_the_first_training_warms_the_head_up(config: Config) -> None:
    """Stages between that only change the vocabulary train no head."""
    context = Context.of(replace(config, model=replace(config.model, head_warmup_steps=2)))
    first = dapt_stages(context).training
    second = dapt_stages(context.starting_from(first)).training
    assert (first.head_warmup, second.head_warmup) == (2, 0)
    trimmed = with_own_tokenizer(context, trim(context))
    extended = with_own_tokenizer(trimmed, extend(trimmed))
    for changed in (trimmed, extended):
        third = dapt_stages(changed).training
        assert (third.head_warmup, third.what()["head_warmup_steps"]) == (2, 2)
        assert dapt_stages(changed.starting_from(third)).training.head_warmup == 0


def test_an_untrained_head_generates_no_text_after_a_change_of_the_vocabulary(config: Config) -> None:
    context = Context.of(replace(config, mixture=MixtureConfig(replay_kind="gibbs")))
    with pytest.raises(ConfigError, match="the model's head is new and untrained"):
        dapt_stages(with_own_tokenizer(context, extend(context)))


def test_only_the_first_training_begins_with_random_parts(config: Config) -> None:
    """Jobs of a chain redraw the top layers each, and a sequence redraws them once. New tokens train no head."""
    context = Context.of(replace(config, model=replace(config.model, reinitialize_top=1)))
    first = dapt_stages(context).training
    second = dapt_stages(context.starting_from(first)).training
    later = Train.of(context.starting_from(first), first.corpora)
    assert (first.has_new_head, first.new_layers) == (True, 1)
    assert (second.has_new_head, second.new_layers) == (False, 1)
    assert (later.has_new_head, later.new_layers) == (False, 0)
    extended = with_own_tokenizer(context, extend(context))
    assert dapt_stages(extended).training.has_new_head
    assert not dapt_stages(extended.starting_from(dapt_stages(extended).training)).training.has_new_head


def test_a_run_that_trains_only_the_new_head_is_refused(config: Config) -> None:
    """A later training run has a trained head. The length of a run of several epochs depends on the corpus."""
    model = replace(config.model, head_warmup_steps=4)
    with pytest.raises(ConfigError, match=r"head_warmup_steps is 4, but the run has 4 steps") as refused:
        dapt_stages(Context.of(replace(config, model=model)))
    assert "use at most 3" in refused.value.fix
    shares = replace(config.training, phases=[PhaseConfig(fraction=0.5), PhaseConfig()])
    with pytest.raises(ConfigError, match=r"head_warmup_steps is 4, but the run has 4 steps"):
        dapt_stages(Context.of(replace(config, model=model, training=shares)))
    longer = Context.of(replace(config, model=model, training=replace(shares, max_steps=5)))
    later = longer.starting_from(dapt_stages(longer).training)
    assert dapt_stages(later.configured(replace(config, model=model))).training.head_warmup == 0
    dapt_stages(Context.of(replace(config, model=model, training=replace(config.training, epochs=1.0))))


FREEZING: list[tuple[str, dict[str, Any], bool, bool]] = [
    *((kind, {}, True, True) for kind in ("lora", "adapters", "prefix", "demix", "cpt", "hat")),
    ("prompt", {"length": 8}, True, True),
    ("hat", {"on": "model"}, True, False),
    ("freeze", {"all_but_module": True}, True, True),
    *((kind, {}, False, False) for kind in ("freeze", "l2sp", "das")),
]
"""Methods with options, and whether they freeze the head and the layers."""


@pytest.mark.parametrize(("kind", "options", "head", "layers"), FREEZING)
def test_a_method_that_would_leave_new_weights_random_is_refused(
    config: Config, tiny_bert: Path, kind: str, options: dict[str, Any], head: bool, layers: bool
) -> None:
    found = METHODS.load(kind).Options
    method = {"method": MethodConfig(kind), "method_options": found and found(**options)}
    redrawn = replace(config, **method, model=ModelConfig(path=str(tiny_bert), reinitialize_top=1))
    for given, setting, is_frozen in (
        (replace(config, **method), "model.head is new", head),
        (redrawn, "model.reinitialize_top is 1", layers),
    ):
        context = Context.of(given)
        plain = context.configured(replace(given, method=MethodConfig(), method_options=None))
        trained = context.starting_from(dapt_stages(plain).training)
        Train.of(trained.configured(given), dapt_stages(plain).training.corpora)  # the new weights are trained
        if not is_frozen:
            dapt_stages(context)
            continue
        with pytest.raises(ConfigError, match=f"{setting}, but method.kind {kind} freezes the model"):
            dapt_stages(context)


def test_a_turned_decoder_depends_on_a_tokenizer_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage writes the tokenizer, so text that is tokenized with it depends on the tokenizer's files, too."""
    config = dapt_world(tmp_path, monkeypatch)
    decoder = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 128}
    (tmp_path / "model" / "config.json").write_text(json.dumps(decoder))
    config = replace(config, objective=replace(config.objective, kind="mntp"))

    def built(tokenizer: str | None) -> tuple[TurnDecoder, Export]:
        model = replace(config.model, attention="bidirectional", tokenizer=tokenizer)
        export = dapt_stages(Context.of(replace(config, model=model)))
        turned = export.training.start.turned
        assert isinstance(turned, TurnDecoder)
        return turned, export

    def named(name: str) -> tuple[TurnDecoder, Export]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tokenizer.json").write_text(name)
        return built(str(folder))

    (first, text), (second, other_text) = named("one"), named("another")
    assert first.key != second.key
    assert text.domain.key != other_text.domain.key
    plain, _ = built(None)
    assert plain.what() == {"model": plain.start.digest}


@pytest.mark.heavy
def test_a_model_without_a_head_is_adapted(config: Config, bare: Path, tmp_path: Path) -> None:
    given = [
        *("--name", "headed", "--model.path", str(bare), "--model.head", "new", "--model.head_warmup_steps", "2"),
        *("--corpus.paths", str(config.corpus.paths), "--corpus.heldout_fraction", "0.2"),
        *("--training.max_steps", "4", "--training.global_batch_size", "4", "--training.sequence_length", "32"),
        *("--evaluation.sequence_length", "32", "--storage.root", config.storage.root),
    ]
    done = run_forked([str(ROOT / "jobs" / "dapt.py"), *given], tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    # an untrained head gives all 154 tokens about the same probability
    assert said["metrics"]["losses"]["domain"]["before"]["value"] > math.log(154) - 0.1
    card = (Path(said["path"]) / "README.md").read_text()
    assert "**Note:** The base model has no language-model head. A new one was trained from random weights" in card
