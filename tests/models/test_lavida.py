"""LaViDa end to end on a model the tests teach to name colours: pictures of every kind, prompts, batches, checkpoints.

Parity with the published code is in test_golden.py.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support import sight

import unmask
from unmask import Canvas, UserError
from unmask.cli import main
from unmask.decoding.methods import ABOUT
from unmask.decoding.reading import Ask
from unmask.decoding.rules.schedules import Cosine, LogitNormal, Shift
from unmask.decoding.rules.selection import Quota
from unmask.models.images import best_grid, fitted, found, kept, opened, squared, views
from unmask.models.lavida import IMAGE, SO400M, SYSTEM, LaViDaConfig, LlavaLladaForMaskedDiffusion, VisionModel
from unmask.models.model import Model

ASKED = "What colour is it?"
GRIDS = [(384, 768), (768, 384), (768, 768), (1152, 384), (384, 1152)]  # the published ones


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lavida")
    sight.published(sight.taught(folder), folder)
    return folder


@pytest.fixture(scope="module")
def model(checkpoint) -> VisionModel:
    return unmask.load(checkpoint)


@pytest.fixture()
def copy(checkpoint, tmp_path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def png(image: Image.Image, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


# ---------------------------------------------------------------- pictures


def test_grid_shows_most_pixels_then_wastes_least():
    assert best_grid((700, 700), GRIDS) == (768, 768)
    assert best_grid((2000, 500), GRIDS) == (1152, 384)
    assert best_grid((300, 900), GRIDS) == (384, 1152)
    assert best_grid((700, 350), GRIDS) == (768, 384)
    assert best_grid((1, 1), GRIDS) == (384, 768)  # all show its one pixel; the first of the smallest


def test_fitted_centres_on_black_and_squared_on_grey():
    wide = fitted(Image.new("RGB", (20, 5), "white"), (8, 8))  # scale 0.4: 8 x 2, three black rows above and below
    assert [wide.getpixel((4, y))[0] for y in range(8)] == [0, 0, 0, 255, 255, 0, 0, 0]
    tall = squared(Image.new("RGB", (2, 6), "white"))
    assert tall.size == (6, 6) and [tall.getpixel((x, 3))[0] for x in range(6)] == [127, 127, 255, 255, 127, 127]


def test_views_are_the_whole_then_tiles_row_by_row():
    image = Image.new("RGB", (16, 16))
    for i, grey in enumerate((0, 85, 170, 255)):
        image.paste((grey,) * 3, (i % 2 * 8, i // 2 * 8, i % 2 * 8 + 8, i // 2 * 8 + 8))
    shown = views(image, 8, [(16, 16)])
    assert shown.shape == (5, 3, 8, 8)
    torch.testing.assert_close(shown[1:, 0, 4, 4], torch.tensor([-1, 85 / 127.5 - 1, 170 / 127.5 - 1, 1]))
    assert views(image, 8, None).shape == (1, 3, 8, 8)


def test_token_counts_of_the_published_model():
    config = LaViDaConfig(image_grid_pinpoints=str(GRIDS))  # a string is how some configs hold it
    assert config.vision_config == SO400M and config.pooled == 14 and config.grids == GRIDS
    assert LaViDaConfig().grids == GRIDS
    assert config.tokens((500, 500)) == 196 + 28 * 29
    # 1000 x 500 -> 768 x 384, 14 x 28 tokens, nothing cropped
    assert config.tokens((1000, 500)) == 196 + 14 * 29
    # 800 x 500 -> 768 x 768, 28 x 28 tokens: int(500 * 28 / 800) = 17 rows, so 5 go above and below
    assert kept((800, 500), 28, 28) == (slice(5, 23), slice(0, 28))
    assert config.tokens((800, 500)) == 196 + 18 * 29
    assert config.tokens((10_000, 20)) == 196  # nothing of its rows is left, as published
    assert LaViDaConfig(image_aspect_ratio="pad").tokens((800, 500)) == 197


def kinds() -> dict[str, Image.Image]:
    red = sight.picture("red", (17, 11))
    palette = red.convert("P")
    palette.info["transparency"] = 0
    return {
        "grey": red.convert("L"), "bilevel": red.convert("1"), "palette": palette, "alpha": red.convert("RGBA"),
        "grey-alpha": red.convert("LA"), "cmyk": red.convert("CMYK"), "16-bit": Image.new("I;16", (9, 7), 40_000),
        "32-bit": Image.new("I", (9, 7), 200), "float": Image.new("F", (9, 7), 0.5), "hsv": red.convert("HSV"),
        "1x1": red.resize((1, 1)), "1x900": red.resize((1, 900)), "10000x20": red.resize((10_000, 20)),
        "2x90000": red.resize((2, 90_000)),
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "image"), kinds().items(), ids=kinds())
@pytest.mark.parametrize("aspect", ["anyres", "pad"])
def test_any_picture_takes_the_tokens_it_is_counted_for(model, monkeypatch, kind, image, aspect):
    monkeypatch.setattr(model.module.config, "image_aspect_ratio", aspect)
    seen = opened(image)
    assert seen.mode == "RGB" and seen.size == image.size
    tokens = model.module.see(seen)
    assert tokens.shape == (model.module.config.tokens(seen.size), model.module.config.d_model)
    assert torch.isfinite(tokens).all()
    assert "<" not in unmask.generate(model, ASKED, "top-probability", images=image, length=2).text


def test_16_bits_are_scaled_and_exif_turns(tmp_path):
    assert opened(Image.new("I;16", (2, 2), 40_000)).getpixel((0, 0)) == (156, 156, 156)
    image = Image.new("RGB", (4, 2), "black")
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # shown a quarter turn clockwise: what was top left is top right
    turned = opened(png(image, exif=exif))
    assert turned.size == (2, 4) and turned.getpixel((1, 0)) == (255, 255, 255)


def test_pictures_come_as_paths_bytes_urls_and_rows(tmp_path):
    content = png(sight.picture("green"))
    (tmp_path / "green.png").write_bytes(content)
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    for source in (
        tmp_path / "green.png",
        str(tmp_path / "green.png"),
        content,
        url,
        {"bytes": content, "path": "x.png"},
    ):
        assert opened(source).getpixel((0, 0)) == sight.COLOURS["green"]


def test_what_is_no_picture_is_one_line(tmp_path):
    (tmp_path / "text.png").write_text("not a picture")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "torn.png").write_bytes(png(Image.effect_noise((64, 64), 90))[:900])
    bad = [
        tmp_path / "text.png", tmp_path / "empty.png", tmp_path / "torn.png", tmp_path / "none.png", tmp_path, b"xx",
        None, {"bytes": None, "path": None}, "data:image/png;base64,@@", "data:image/png;base64,eHh4",
        "https://example.org/a.png",
    ]  # fmt: skip
    for source in bad:
        with pytest.raises(UserError) as error:
            opened(source)
        assert "\n" not in str(error.value) and "picture" in str(error.value)


def test_pictures_of_rows_are_found_in_folders_and_zips(tmp_path):
    content = png(sight.picture("blue"))
    for place in ("png/a.png", "ChartQA Dataset/test/b.png", "c.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(content)
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("images/d.png", content)
    assert found("png/a.png", tmp_path) == tmp_path / "png/a.png"
    assert found("png/b.png", tmp_path) == tmp_path / "ChartQA Dataset/test/b.png"
    assert found("images/c.png", tmp_path) == tmp_path / "c.png"
    assert found("images/d.png", tmp_path) == content
    assert found(content, tmp_path) == content and found({"bytes": content}, tmp_path) == {"bytes": content}
    with pytest.raises(UserError, match=r"no picture e\.png"):
        found("e.png", tmp_path)


# ---------------------------------------------------------------- prompts


def test_prompt_is_the_published_conversation(model):
    image = sight.picture("red")
    n = model.module.config.tokens(image.size)
    ids = model.encode("<image>\n" + ASKED, images=[image])
    at = ids.index(IMAGE)
    assert ids[at : at + n] == [IMAGE] * n and ids.count(IMAGE) == n
    # the line end behind <image> is dropped, as the published tokenisation drops it
    assert model.tokenizer.decode(ids[:at]) == (
        f"<|startoftext|><|start_header_id|>system<|end_header_id|>\n\n{SYSTEM}<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n"
    )
    assert (
        model.tokenizer.decode(ids[at + n :]) == f"{ASKED}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert model.encode(ASKED, images=[image]) == ids  # pictures come first where the prompt does not say
    assert model.encode([{"role": "user", "content": ASKED}], images=[image]) == ids
    assert "What" in model.tokenizer.decode([i for i in model.encode("<image>What", images=[image]) if i >= 0])


def test_a_system_prompt_of_ones_own_and_raw_text(model):
    own = model.tokenizer.decode(model.encode("Hi", system="Be brief."))
    assert "Be brief." in own and SYSTEM not in own
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert model.tokenizer.decode(model.encode(turns)) == own
    assert model.tokenizer.decode(model.encode("Hi", raw=True)) == "Hi"


def test_pictures_and_places_must_agree(model):
    red = sight.picture("red")
    for prompt, images in (("<image> and <image>", [red]), ("<image>", []), ("<image>", [red, red])):
        with pytest.raises(UserError, match="<image>"):
            model.encode(prompt, images=images)
    assert model.encode("a <image> b <image> c", images=[red, red]).count(IMAGE) == 2 * model.module.config.tokens(
        red.size
    )
    with pytest.raises(UserError, match="an entry for every prompt"):
        unmask.generate(model, ["a", "b"], images=[red])


# ---------------------------------------------------------------- decoding


@pytest.mark.parametrize("cache", [None, "none", "prefix", "dual", "prefix-lm"])
def test_it_says_what_it_sees(model, cache):
    names, sizes = [*sight.COLOURS] * 2, [(13, 9), (6, 19), (30, 5), (9, 9), (40, 40), (7, 31)]
    images = [sight.picture(name, size) for name, size in zip(names, sizes, strict=True)]
    made = unmask.generate(model, [ASKED] * 6, "top-probability", images=images, length=4, cache=cache, batch=3)
    assert [g.text for g in made] == [name * 4 for name in names]


def test_the_default_is_the_prefix_mode(model):
    image = sight.picture("red")
    canvas = Canvas.blank([model.encode(ASKED, images=[image])], 6, model.vocab)
    ask = Ask(canvas, slice(0, 6), canvas.masked, None, 0)  # type: ignore[arg-type]
    logits = {
        cache: model.denoiser(cache=cache, images=[image])
        .begin(canvas)
        .logits(ask, *ask.where.nonzero(as_tuple=True))(slice(None))
        for cache in (None, "prefix-lm", "none")
    }
    assert torch.equal(logits[None], logits["prefix-lm"])
    assert not torch.allclose(logits[None], logits["none"], atol=1e-3)
    session = model.begin(canvas, [image])
    torch.testing.assert_close(session.logits(ask, *ask.where.nonzero(as_tuple=True))(slice(None)), logits[None])


@pytest.mark.parametrize("cache", ["none", "prefix-lm"])
def test_a_batch_equals_its_rows_alone(model, cache):
    """Different pictures, different numbers of them, a row with none: up to the rounding that padding brings."""
    red, blue, tall = sight.picture("red"), sight.picture("blue", (40, 40)), sight.picture("green", (5, 60))
    rows = [[red], [blue, tall], [], [tall]]
    prompts = [model.encode("Which colours?", images=images) for images in rows]

    def logits(prompts, images):
        canvas = Canvas.blank(prompts, 5, model.vocab)
        ask = Ask(canvas, slice(0, 5), canvas.masked, None, 0)  # type: ignore[arg-type]
        session = model.denoiser(cache=cache, images=images).begin(canvas)
        return session.logits(ask, *ask.where.nonzero(as_tuple=True))(slice(None)).unflatten(0, (len(prompts), 5))

    together = logits(prompts, [image for images in rows for image in images])
    for row, (prompt, images) in enumerate(zip(prompts, rows, strict=True)):
        torch.testing.assert_close(together[row : row + 1], logits([prompt], images), atol=1e-4, rtol=0)
    done = unmask.generate(model, ["Which colours?"] * 4, images=rows, length=32)
    alone = [
        unmask.generate(model, ["Which colours?"], images=[images], length=32, seed=i)[0]
        for i, images in enumerate(rows)
    ]
    assert [d.tokens for d in done] == [a.tokens for a in alone]


def test_every_method_decodes_a_picture(model):
    table = torch.full((len(model.tokenizer) + sight.SPARE,), 1e-3)  # for uncode
    vocab = unmask.Vocab(model.vocab.mask_id, model.vocab.eot_ids, table)
    with_table = VisionModel(model.name, model.module, model.tokenizer, vocab)
    for name, about in ABOUT.items():
        if name == "wino" or "length" in about.needs:  # they say so in one line
            with pytest.raises(UserError, match="the prefix-lm cache"):
                unmask.generate(with_table, ASKED, name, images=sight.picture("blue"), length=48)
            continue
        done = unmask.generate(with_table, ASKED, name, images=sight.picture("blue"), length=48)
        assert vocab.mask_id not in done.tokens
        if about.family not in ("paper", "variant"):  # others may write end-of-text, or more or fewer tokens
            continue
        assert len(done.tokens) == 48
        assert {token for token, when in zip(done.tokens, done.order, strict=True) if when >= 0} == {
            model.tokens("blue")[0]
        }


def test_sacm_with_the_settings_for_charts(model):
    strategy = unmask.method("sacm").with_(kappa=12, beta=1.0, gamma=1.0)
    done = unmask.generate(model, ASKED, strategy, images=sight.picture("green"), length=64)
    anchor = model.tokens("The answer is")
    assert done.tokens[-20 : -20 + len(anchor)] == anchor and done.text.endswith("green" * (20 - len(anchor)))


@pytest.mark.parametrize("schedule", [Shift(), Shift(0.33), Cosine(), LogitNormal()])
def test_schedules_serve_any_method_and_keep_the_budget(model, schedule):
    strategy = unmask.Strategy(select=Quota(schedule))
    done = unmask.generate(
        model, [ASKED, "And now, what is it?"], strategy, images=[sight.picture("red")] * 2, length=24, steps=7
    )
    assert [d.forwards for d in done] == [7, 7] and strategy.bound(24, 7) == 7
    per_step = [done[0].order.count(i) for i in range(7)]
    assert sum(per_step) == 24 and min(per_step) >= 1
    if schedule == Shift():
        assert sum(per_step[:3]) < sum(per_step[-3:]) / 2
    assert eval(repr(strategy), {name: getattr(unmask, name) for name in unmask.__all__}) == strategy


def test_guidance_hides_the_picture_from_the_unconditional_side(model):
    image = sight.picture("red")
    canvas = Canvas.blank([model.encode(ASKED, images=[image])], 4, model.vocab)
    ask = Ask(canvas, slice(0, 4), canvas.masked, None, 0)  # type: ignore[arg-type]
    at = ask.where.nonzero(as_tuple=True)

    def logits(session, ask):
        return session.logits(ask, *at)(slice(None))

    blind = Canvas.blank([[0] * canvas.start], 4, model.vocab)
    blind.ids[:] = model.vocab.mask_id
    for cache in ("none", "prefix-lm"):
        given = logits(model.denoiser(cache=cache, images=[image]).begin(canvas), ask)
        free = logits(model.denoiser(cache=cache).begin(blind), Ask(blind, slice(0, 4), ask.where, None, 0))  # type: ignore[arg-type]
        both = logits(model.denoiser(1.5, cache, [image]).begin(canvas), ask)
        torch.testing.assert_close(both, free + 2.5 * (given - free), atol=1e-4, rtol=0)


# ---------------------------------------------------------------- checkpoints


def test_published_names_and_a_round_trip(checkpoint, tmp_path):
    names = set(load_file(checkpoint / "model.safetensors"))
    tower = "model.vision_tower.vision_tower.vision_model."
    assert {f"{tower}embeddings.patch_embedding.weight", f"{tower}encoder.layers.1.self_attn.out_proj.bias",
            f"{tower}post_layernorm.weight", "model.mm_projector.0.weight", "model.mm_projector.2.bias",
            "model.image_newline", "model.transformer.blocks.0.ff_proj.weight"} <= names  # fmt: skip
    assert not any("layers.2." in name or ".head." in name for name in names if name.startswith(tower))
    unmask.load(checkpoint).module.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    again = {k: v for file in tmp_path.glob("*.safetensors") for k, v in load_file(file).items()}
    assert set(again) == names
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlavaLladaForMaskedDiffusion"]
    module = LlavaLladaForMaskedDiffusion.from_pretrained(tmp_path)
    assert all(torch.equal(value, again[name]) for name, value in module.state_dict().items())


def test_the_published_size_has_the_published_tensors():
    with torch.device("meta"):
        module = LlavaLladaForMaskedDiffusion(LaViDaConfig(n_kv_heads=32, mlp_hidden_size=12288, embedding_size=126464))
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    tower, layer = "model.vision_tower.vision_tower.vision_model.", "encoder.layers.25."
    wanted = {
        "model.transformer.wte.weight": (126464, 4096), "model.transformer.blocks.31.ff_out.weight": (4096, 12288),
        "model.transformer.ff_out.weight": (126464, 4096), "model.image_newline": (4096,),
        "model.mm_projector.0.weight": (4096, 1152), "model.mm_projector.2.weight": (4096, 4096),
        tower + "embeddings.patch_embedding.weight": (1152, 3, 14, 14),
        tower + "embeddings.position_embedding.weight": (729, 1152), tower + "post_layernorm.bias": (1152,),
        tower + layer + "self_attn.out_proj.weight": (1152, 1152), tower + layer + "mlp.fc1.weight": (4304, 1152),
    }  # fmt: skip
    assert {name: shapes[name] for name in wanted} == wanted
    # 3 and 9 a block of LLaDA, 16 a layer of SigLIP, its 3 embeddings and 2 of its norm, the projector's 4, the newline
    assert len(shapes) == 3 + 9 * 32 + 16 * 26 + 3 + 2 + 4 + 1


def siglip(folder: Path, module: LlavaLladaForMaskedDiffusion) -> Path:
    """A whole SigLIP, as Google publishes it, whose first layers are the module's tower."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    torch.manual_seed(1)
    whole = SiglipVisionModel(SiglipVisionConfig(**sight.VISION))
    getattr(whole, "vision_model", whole).load_state_dict(module.tower.state_dict(), strict=False)
    whole.save_pretrained(folder)
    return folder


def test_a_checkpoint_without_a_tower_borrows_siglip(copy, model, tmp_path):
    tensors = load_file(copy / "model.safetensors")
    save_file(
        {k: v for k, v in tensors.items() if "vision_tower" not in k}, copy / "model.safetensors", {"format": "pt"}
    )
    (copy / "vision_config.json").unlink()
    config = json.loads((copy / "config.json").read_text())
    config["mm_vision_tower"] = str(siglip(tmp_path / "siglip", model.module))
    (copy / "config.json").write_text(json.dumps(config))
    borrowed = unmask.load(copy)
    image = sight.picture("green")
    assert torch.equal(borrowed.module.see(image), model.module.see(image))
    shutil.rmtree(tmp_path / "siglip")
    with pytest.raises(UserError, match="vision tower"):
        unmask.load(copy)


def test_google_siglip_need_not_be_described():
    """The published checkpoint may name an author's own path; its width says which SigLIP it is."""
    config = LaViDaConfig(mm_vision_tower="/author/only/siglip", mm_hidden_size=1152)
    assert config.vision_config == SO400M
    with pytest.raises(UserError, match="nothing describes"):
        LaViDaConfig(mm_vision_tower="/author/only/siglip", mm_hidden_size=999)


def test_resized_embeddings_load_and_spare_rows_are_never_written(copy, model):
    tensors = load_file(copy / "model.safetensors")
    rows, spoken = tensors["model.transformer.wte.weight"].shape[0], len(model.tokenizer)
    assert rows == spoken + sight.SPARE
    # the spare rows are made the likeliest of all, and still nothing changes
    loud = {**tensors, "model.transformer.ff_out.weight": tensors["model.transformer.ff_out.weight"].clone()}
    loud["model.transformer.ff_out.weight"][spoken:] = (
        10 * loud["model.transformer.ff_out.weight"][model.tokens("red")[0]]
    )
    save_file(loud, copy / "model.safetensors", {"format": "pt"})
    wanted = unmask.generate(model, ASKED, images=sight.picture("red"), length=32).tokens
    assert unmask.generate(unmask.load(copy), ASKED, images=sight.picture("red"), length=32).tokens == wanted
    # as the published loader leaves them: config.json still says the larger number
    for name in ("wte", "ff_out"):
        tensors[f"model.transformer.{name}.weight"] = tensors[f"model.transformer.{name}.weight"][:spoken].clone()
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    assert json.loads((copy / "config.json").read_text())["embedding_size"] == rows
    resized = unmask.load(copy)
    assert resized.module.get_input_embeddings().num_embeddings == spoken
    assert unmask.generate(resized, ASKED, images=sight.picture("red"), length=32).tokens == wanted


def test_dtype_device_map_and_quantisation(checkpoint):
    half = unmask.load(checkpoint, dtype="bfloat16")
    assert {p.dtype for p in half.module.parameters()} == {torch.bfloat16}
    assert unmask.generate(half, ASKED, "top-probability", images=sight.picture("blue"), length=2).text == "blueblue"
    pytest.importorskip("accelerate")
    mapped = unmask.load(checkpoint, device_map={"": "cpu"})
    assert unmask.generate(mapped, ASKED, "top-probability", images=sight.picture("red"), length=2).text == "redred"
    pytest.importorskip("torchao")
    small = unmask.load(checkpoint, quantize="int8")
    assert (
        unmask.generate(small, ASKED, "top-probability", images=sight.picture("green"), length=2).text == "greengreen"
    )


def test_an_unknown_image_path_is_one_line():
    with pytest.raises(UserError, match="image_aspect_ratio"):
        LaViDaConfig(image_aspect_ratio="anyres_max_9")
    with pytest.raises(UserError, match="mm_projector_type"):
        LaViDaConfig(mm_projector_type="linear")


# ---------------------------------------------------------------- the command line


def command(*arguments: object) -> subprocess.CompletedProcess:
    run = [sys.executable, "-c", "from unmask.cli import main; main()", *map(str, arguments)]
    return subprocess.run(run, capture_output=True, text=True, check=False)


def test_a_model_without_eyes_says_so():
    with pytest.raises(UserError, match="cannot see pictures"):
        Model("blind", None, None, unmask.Vocab(0)).encode("What?", images=[sight.picture("red")])


def test_generate_with_a_picture(checkpoint, tmp_path, capsys):
    for colour in sight.COLOURS:
        sight.picture(colour, (25, 14)).save(tmp_path / f"{colour}.png")
    two = [str(tmp_path / "blue.png")] * 2
    rows = [{"prompt": ASKED, "image": str(tmp_path / "red.png")}, {"prompt": "Now <image> and <image>?", "image": two}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one = command("generate", ASKED, "--image", tmp_path / "green.png", "--model", checkpoint, "--length", 40)
    assert one.returncode == 0, one.stderr
    assert one.stdout.strip().replace("The answer is", "") == "green" * (40 - len("The answer is"))
    main(["generate", "--prompts", str(tmp_path / "rows.jsonl"), "--model", str(checkpoint), "--length", "4",
          "--method", "top-probability", "--json"])  # fmt: skip
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["red" * 4, "blue" * 4]
    (tmp_path / "bad.png").write_text("no")
    with pytest.raises(SystemExit) as stopped:
        main(["generate", ASKED, "--image", str(tmp_path / "bad.png"), "--model", str(checkpoint)])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.count("\n") == 1
    assert said.startswith(f"unmask: {tmp_path / 'bad.png'} is no picture")


# ---------------------------------------------------------------- the benchmarks


def charts(folder: Path, layout: str) -> Path:
    """ChartQA as it is given out (json and png), zipped, or as the Hub has it: six pictures whose colour is asked."""
    parts = {"human": ["red", "green", "blue"], "augmented": ["blue", "blue", "red"]}
    (folder / "test" / "png").mkdir(parents=True)
    for part, colours in parts.items():
        rows = []
        for i, colour in enumerate(colours):
            sight.picture(colour, (10 + 7 * i, 12)).save(folder / "test" / "png" / f"{part}{i}.png")
            rows.append({"imgname": f"{part}{i}.png", "query": ASKED, "label": colour})
        (folder / "test" / f"test_{part}.json").write_text(json.dumps(rows))
    if layout == "folder":
        return folder
    if layout == "zip":
        return Path(shutil.make_archive(str(folder), "zip", folder))
    import pyarrow
    import pyarrow.parquet

    rows = [
        {"image": {"bytes": (folder / "test" / "png" / f"{part}{i}.png").read_bytes(), "path": None}, "query": ASKED,
         "label": [colour], "human_or_machine": int(part == "augmented")}
        for part, colours in parts.items() for i, colour in enumerate(colours)
    ]  # fmt: skip
    (folder / "hub" / "data").mkdir(parents=True)
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, folder / "hub" / "data" / "test-00000-of-00001-a1.parquet")
    return folder / "hub"


WORD = ["--methods", "sacm", "--length", "48", "--set", "text= The answer is ", "--set", "at=-16"]  # one slot behind it


def evaluated(capsys, *arguments: object) -> dict:
    main(["eval", *map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("layout", ["folder", "zip", "hub"])
def test_chartqa_end_to_end(checkpoint, tmp_path, monkeypatch, capsys, layout):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if layout == "hub":
        pytest.importorskip("pyarrow")
    data = charts(tmp_path / "charts", layout)
    given = ("--task", "chartqa", "--data", data, "--model", checkpoint, *WORD, "--batch", 4, "--out", tmp_path / "run")
    found = evaluated(capsys, *given)["methods"]["sacm"]
    assert found["accuracy"] == 1.0 and found["rows"] == 6
    assert {name: part["rows"] for name, part in found["groups"].items()} == {"human": 3, "augmented": 3}
    assert "AnchorModulation(kappa=12.0, beta=1.0, gamma=1.0)" in found["strategy"]


def test_a_missing_picture_stops_or_is_skipped(checkpoint, tmp_path, capsys):
    data = charts(tmp_path / "charts", "folder")
    (data / "test" / "png" / "human1.png").unlink()
    given = ["--task", "chartqa", "--data", data, "--model", checkpoint, *WORD]
    with pytest.raises(SystemExit) as stopped:
        evaluated(capsys, *given, "--out", tmp_path / "a")
    assert stopped.value.code == 2 and not (tmp_path / "a").exists()
    assert capsys.readouterr().err.startswith("unmask: chartqa, row 2: there is no picture png/human1.png")
    found = evaluated(capsys, *given, "--out", tmp_path / "b", "--bad-rows", "skip", "--limit", 3)
    assert found["rows"] == 3 and found["methods"]["sacm"]["accuracy"] == 1.0


def test_mathvista_end_to_end(checkpoint, tmp_path, capsys):
    """Pictures in images.zip beside testmini.json, as its authors give it out."""
    row = {"question": ASKED, "choices": None, "precision": None, "question_type": "free_form", "answer_type": "text"}
    named = enumerate(sight.COLOURS, 1)
    rows = {str(i): {**row, "pid": str(i), "image": f"images/{i}.png", "answer": colour} for i, colour in named}
    (tmp_path / "testmini.json").write_text(json.dumps(rows))
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for i, colour in enumerate(sight.COLOURS, 1):
            archive.writestr(f"images/{i}.png", png(sight.picture(colour)))
    given = ("--task", "mathvista", "--data", tmp_path, "--model", checkpoint, *WORD, "--out", tmp_path / "run")
    assert evaluated(capsys, *given)["methods"]["sacm"]["accuracy"] == 1.0
