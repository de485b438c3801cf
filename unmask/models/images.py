"""Pictures, from whatever holds one to the views a vision tower looks at.

W x H is a picture's size, S the side of a view. Sizes are (width, height), as Pillow has them.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from unmask.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

Stored: TypeAlias = "str | Path | bytes | dict[str, Any]"  # as data holds a picture; a dict is a Hub row's
Picture: TypeAlias = "Stored | IO[bytes] | Image.Image"  # as a caller may have it: whatever `opened` opens
SUFFIXES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff"}
LARGE = 4096
GREY = (127, 127, 127)  # 255 times SigLIP's mean, as the published code rounds it


def opened(source: Picture) -> Image.Image:
    """An RGB Pillow image, from a path, bytes, a data: URL, a Hub row's {"bytes": ...} or Pillow's own.

    It is turned upright by its EXIF tag. Transparency is dropped, not blended: the published code does the same.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise UserError('pictures need Pillow: pip install "unmask[vision]"') from None
    name, content = _content((source.get("bytes") or source.get("path")) if isinstance(source, dict) else source)
    try:
        image = content if isinstance(content, Image.Image) else Image.open(content)
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I;16"):  # Pillow would clip 16 bits to 8, not scale them
            image = image.convert("I").point(lambda v: v / 256)
        return image.convert("RGB")
    except Image.DecompressionBombError:
        raise UserError(f"{name} has too many pixels to open safely; scale it down first") from None
    except FileNotFoundError:
        raise UserError(f"there is no picture {name}") from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError) as error:
        why = "" if isinstance(error, UnidentifiedImageError) else f" ({str(error)[:100]})"
        raise UserError(f"{name} is no picture that can be read{why}; give a PNG, JPEG, GIF or WebP file") from None


def _content(source: str | Path | bytes | IO[bytes] | Image.Image | None) -> tuple[str, Path | IO[bytes] | Image.Image]:
    """What to call it in a message, and what to open."""
    if isinstance(source, (bytes, bytearray)):
        return f"the picture of {len(source)} bytes", io.BytesIO(source)
    if isinstance(source, str) and source.startswith("data:"):
        try:
            return "the data: URL", io.BytesIO(base64.b64decode(source.partition(",")[2], validate=True))
        except binascii.Error:
            raise UserError("the data: URL of the picture is not base64") from None
    if isinstance(source, (str, Path)):
        if str(source).startswith(("http://", "https://")):
            raise UserError(f"{source} is a link: download the picture and give the file")
        path = Path(source).expanduser()
        if path.is_dir():
            raise UserError(f"{path} is a folder, not a picture")
        return str(path), path
    if source is None:
        raise UserError("there is no picture: the row has none")
    if not hasattr(source, "convert") and not hasattr(source, "read"):  # neither Pillow's nor an open file
        raise UserError(f"a picture is a path, bytes or a Pillow image, not {source!r:.40}")
    return "the picture", source


def found(source: Stored, root: Path | None) -> Stored:
    """A row's picture: bytes as they are; a name looked up beside the rows, in folders there and in zips there."""
    if not isinstance(source, (str, Path)) or str(source).startswith("data:") or root is None:
        return source
    if (root / source).is_file():
        return root / source
    where = _shelf(root).get(Path(source).name)
    if where is None:
        raise UserError(f"there is no picture {source} in {root}, nor in a folder or zip there; get the images too")
    folder, name = where
    if folder.is_dir():
        return folder / name
    return _archive(folder).read(name)


@lru_cache(maxsize=8)
def _shelf(root: Path) -> dict[str, tuple[Path, str]]:
    """File name -> (the folder or zip that has it, its path in there)."""
    held: dict[str, tuple[Path, str]] = {}
    for archive in sorted(root.glob("*.zip")):
        held |= {Path(member).name: (archive, member) for member in _archive(archive).namelist()}
    for depth in ("*/*/*", "*/*", "*"):  # the nearest wins
        held |= {path.name: (path.parent, path.name) for path in sorted(root.glob(depth)) if path.suffix in SUFFIXES}
    return held


@lru_cache(maxsize=8)
def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise UserError(f"{path} is no zip that can be read ({error}); download it again") from None


def best_grid(size: tuple[int, int], grids: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The resolution that shows most of the picture's own pixels, then wastes least; ties go to the first."""

    def shown(grid: tuple[int, int]) -> tuple[int, int]:
        scale = min(grid[0] / size[0], grid[1] / size[1])
        pixels = min(int(size[0] * scale) * int(size[1] * scale), size[0] * size[1])
        return pixels, pixels - grid[0] * grid[1]

    return max(grids, key=shown)


def fitted(image: Image.Image, grid: tuple[int, int]) -> Image.Image:
    """The picture as large as the grid holds it, centred on black."""
    from PIL import Image

    across, down = grid[0] / image.width, grid[1] / image.height
    if across < down:
        size = grid[0], min(math.ceil(image.height * across), grid[1])
    else:
        size = min(math.ceil(image.width * down), grid[0]), grid[1]
    canvas = Image.new("RGB", grid)
    canvas.paste(image.resize(size), ((grid[0] - size[0]) // 2, (grid[1] - size[1]) // 2))
    return canvas


def squared(image: Image.Image) -> Image.Image:
    """The picture centred on a grey square; above 4,096 pixels a side it is scaled down first, as the square must fit in memory."""
    from PIL import Image

    if max(image.size) > LARGE:
        width, height = (max(1, round(n * LARGE / max(image.size))) for n in image.size)
        image = image.resize((width, height))
    side = max(image.size)
    canvas = Image.new("RGB", (side, side), GREY)
    canvas.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return canvas


def views(image: Image.Image, side: int, grids: Sequence[tuple[int, int]] | None) -> Tensor:
    """(views, 3, S, S) in [-1, 1]: the whole picture, then the tiles of its best grid row by row; without grids the
    picture alone, padded to a square."""
    if grids is None:
        return pixels(squared(image).resize((side, side)))[None]
    canvas = fitted(image, best_grid(image.size, grids))
    tiles = [
        canvas.crop((left, top, left + side, top + side))
        for top in range(0, canvas.height, side)
        for left in range(0, canvas.width, side)
    ]
    return torch.stack([pixels(view) for view in (image.resize((side, side)), *tiles)])


def pixels(image: Image.Image) -> Tensor:
    """(3, H, W): x / 255 rounded to float32, then (x - 0.5) / 0.5, in the published order."""
    import numpy

    x = torch.from_numpy(numpy.array(image)).permute(2, 0, 1)
    return ((x.double() * (1 / 255)).float() - 0.5) / 0.5


def kept(size: tuple[int, int], across: int, down: int) -> tuple[slice, slice]:
    """Rows and columns of a (down, across) grid of tokens that show the picture and not the black beside it."""
    width, height = size
    if width / height > across / down:
        pad = (down - int(height * (across / width))) // 2
        return slice(pad, down - pad), slice(0, across)
    pad = (across - int(width * (down / height))) // 2
    return slice(0, down), slice(pad, across - pad)
