"""Models as folders that can be shared: weights in safetensors, the prior and the sizes in JSON.

Nothing in such a folder is a pickle, so reading a stranger's folder runs no code of theirs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from .checkpoint import check_checkpoint, load_checkpoint
from .errors import PriorGraphError
from .prior import PriorGraph
from .prior.names import near_names, show, unknown_names

if TYPE_CHECKING:
    from .nn import PriorTransformer

__all__ = ["Shareable", "load_pretrained", "model_card", "push_to_hub", "save_pretrained"]

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FORMAT_VERSION = 1
_KEYS = {
    "format_version": int,
    "pyg_kpnn_version": str,
    "model": str,
    "config": dict,
    "dtype": str,
    "prior": dict,
    "fingerprint": str,
    "weights_sha256": str,
}
_DTYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.float64, torch.float32, torch.float16)}
_DTYPES["bfloat16"] = torch.bfloat16
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_MODEL = TypeVar("_MODEL")


def save_pretrained(
    model: PriorTransformer, folder: str | os.PathLike[str], *, card: str | None = None
) -> Path:
    """Write a model as ``config.json``, ``model.safetensors`` and ``README.md``.

    Each file is written beside the folder's own and put in place when all are complete, ``config.json``
    last; it holds the hash of the weights, so that files of two saves never load as one model.

    Parameters
    ----------
    model : PriorTransformer
        On any device, in any floating dtype, the same for all parameters.
    folder : path
        Made if it is not there. Other files in it stay.
    card : str, optional
        Text of ``README.md``. When not given, :func:`model_card` writes one, unless the folder has one.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    PriorGraphError
        If ``model`` cannot be saved, or ``folder`` is a file.
    ImportError
        Without safetensors.
    """
    state = _state_of(model)
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise PriorGraphError(f"'folder' must be a folder. Got the file {place}.")
    new = not place.exists()
    place.mkdir(parents=True, exist_ok=True)
    try:
        # Inside the folder, because a file moves at once only within one file system.
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=place) as scratch:
            part = Path(scratch)
            _safetensors().save_file(state, part / WEIGHTS, metadata={"format": "pt"})
            names = [WEIGHTS, CONFIG]
            if card is not None or not (place / CARD).exists():
                (part / CARD).write_text(model_card(model) if card is None else card, encoding="utf-8")
                names.insert(0, CARD)
            text = json.dumps(_describe(model, part / WEIGHTS), indent=1, ensure_ascii=False, allow_nan=False)
            (part / CONFIG).write_text(text, encoding="utf-8")
            for name in names:
                os.replace(part / name, place / name)
    except BaseException:
        if new and not any(place.iterdir()):
            place.rmdir()
        raise
    return place


def load_pretrained(
    folder_or_repo: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> PriorTransformer:
    """Build the model that :func:`save_pretrained` wrote, in evaluation mode.

    Parameters
    ----------
    folder_or_repo : path or str
        A folder, or ``"owner/name"`` of a repository on the Hugging Face hub where there is no such
        folder.
    device : str or torch.device, optional
        Where the model goes; the CPU when not given.
    revision, token, cache_dir, force_download, local_files_only
        As ``huggingface_hub.snapshot_download`` takes them; for a folder they mean nothing.

    Returns
    -------
    PriorTransformer
        In the dtype it was saved in. The global random state is as it was.

    Raises
    ------
    PriorGraphError
        If a file is missing or damaged, the files are not of one save, or something in them is not known
        to this version.
    ImportError
        Without safetensors, or without huggingface_hub where one is needed.

    Examples
    --------
    >>> import tempfile, torch
    >>> from pyg_kpnn import PriorGraph, PriorTransformer
    >>> graph = PriorGraph.from_edges([("tf", "gene"), ("gene", "tf")])
    >>> model = PriorTransformer(graph, embed_dim=8, num_heads=2).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_pretrained(model, folder)
    ...     again = load_pretrained(folder)
    >>> again.graph == graph
    True
    """
    from .nn import PriorTransformer

    place = _find(
        folder_or_repo,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        force_download=force_download,
        local_files_only=local_files_only,
    )
    return _load(PriorTransformer, place, device)


def push_to_hub(
    model: PriorTransformer,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    commit_message: str = "Upload a pyg_kpnn model",
    create_pr: bool = False,
    card: str | None = None,
) -> str:
    """Save a model into a repository on the Hugging Face hub, which is made if it is not there.

    Parameters
    ----------
    model : PriorTransformer
        As for :func:`save_pretrained`.
    repo_id : str
        ``"owner/name"``.
    private, token, revision, commit_message, create_pr
        As ``huggingface_hub.HfApi`` takes them.
    card : str, optional
        As for :func:`save_pretrained`; a card that the repository has stays unless this is given.

    Returns
    -------
    str
        Address of the commit, or of the pull request.

    Raises
    ------
    PriorGraphError
        If ``repo_id`` is none, or the model cannot be saved.
    ImportError
        Without huggingface_hub or safetensors.
    """
    if not isinstance(repo_id, str) or not _REPO_ID.fullmatch(repo_id):
        raise PriorGraphError(f"'repo_id' must be 'owner/name'. Got {show(repo_id)}.")
    hub = _hub()
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_pretrained(model, Path(scratch, "model"), card=card)  # before anything is made there
        api = hub.HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        if card is None and api.file_exists(repo_id, CARD, revision=revision):
            (folder / CARD).unlink()
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message=commit_message,
            revision=revision,
            create_pr=create_pr,
        )
    return str(commit.pr_url or commit.commit_url)


def model_card(model: PriorTransformer) -> str:
    """The text of ``README.md``: what the prior is, how large the model, how to load it."""
    graph = model.graph
    facts = {
        "nodes": f"{graph.num_nodes:,}",
        "edges": f"{graph.num_edges:,}",
        "signs": "none"
        if graph.sign is None
        else f"{int((graph.sign > 0).sum()):,} activating, {int((graph.sign < 0).sum()):,} inhibiting",
        "weights": "none" if graph.weight is None else "one an edge",
        "fingerprint": f"`{graph.fingerprint}`",
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        **{name: f"`{value}`" for name, value in model.config.items() if value is not None},
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""---
library_name: pyg_kpnn
tags:
- pyg_kpnn
- graph-attention
- prior-knowledge
---

# {type(model).__name__} on a prior graph

Attention runs along the edges of a prior graph of named nodes. `{CONFIG}` holds that graph, names included.

| | |
|---|---|
{rows}

```python
from pyg_kpnn.hub import load_pretrained

model = load_pretrained("owner/name")  # or the folder these files are in
model.graph.nodes  # the columns of x, in this order; standardise x as in training
```

Attention weights say what the model mixed. They are no evidence that one node regulates another.
"""


class Shareable:
    """Mixin of :class:`PriorTransformer` with the three methods users of the hub look for."""

    def save_pretrained(self, folder: str | os.PathLike[str], *, card: str | None = None) -> Path:
        """Write the model into a folder; see :func:`pyg_kpnn.hub.save_pretrained`."""
        return save_pretrained(cast("PriorTransformer", self), folder, card=card)

    @classmethod
    def from_pretrained(
        cls: type[_MODEL],
        folder_or_repo: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> _MODEL:
        """Build a saved model, from a folder or the hub; see :func:`pyg_kpnn.hub.load_pretrained`."""
        return _load(cls, _find(folder_or_repo, **options), device)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Save the model to the hub; see :func:`pyg_kpnn.hub.push_to_hub`."""
        return push_to_hub(cast("PriorTransformer", self), repo_id, **options)


# --- writing --------------------------------------------------------------------------------------


def _state_of(model: Any) -> dict[str, Tensor]:
    """The state dict as plain tensors on the CPU, no two of them in one memory."""
    from .nn import PriorTransformer

    if not isinstance(model, PriorTransformer):
        raise PriorGraphError(f"'model' must be a PriorTransformer. Got {type(model).__name__}.")
    state = model.state_dict()
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "full_tensor"):
            raise PriorGraphError(
                f"A sharded model must be gathered before it is saved. Got {name} as a "
                f"{type(parameter).__name__}. Load the full state dict into an unsharded model."
            )
        if parameter.is_meta:
            raise PriorGraphError(f"A model must have numbers to be saved. Got {name} on the meta device.")
        if parameter.dtype != model.value_weight.dtype or parameter.dtype not in _DTYPES.values():
            raise PriorGraphError(
                f"All parameters must have one dtype of {', '.join(_DTYPES)}. Got {name} in "
                f"{parameter.dtype} and value_weight in {model.value_weight.dtype}. Cast the model first."
            )
    # A sorted graph and its layers may share memory, which safetensors refuses.
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}


def _describe(model: PriorTransformer, weights: Path) -> dict[str, Any]:
    from . import __version__

    return {
        "format_version": FORMAT_VERSION,
        "pyg_kpnn_version": __version__,
        "model": type(model).__name__,
        "config": model.config,
        "dtype": str(model.value_weight.dtype).removeprefix("torch."),
        "fingerprint": model.graph.fingerprint,
        "weights_sha256": _sha256(weights),
        "prior": model.graph.to_dict(),
    }


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# --- reading --------------------------------------------------------------------------------------


def _find(folder_or_repo: Any, **options: Any) -> Path:
    """The folder itself, or where the hub's files were put."""
    if not isinstance(folder_or_repo, (str, os.PathLike)):
        raise PriorGraphError(
            f"'folder_or_repo' must be a path or 'owner/name'. Got {show(folder_or_repo)} "
            f"({type(folder_or_repo).__name__})."
        )
    place = Path(folder_or_repo)
    if place.is_dir():
        return place
    if place.exists():
        raise PriorGraphError(f"A saved model must be a folder. Got the file {place}.")
    if not isinstance(folder_or_repo, str) or not _REPO_ID.fullmatch(folder_or_repo):
        raise PriorGraphError(f"A saved model must be in a folder that is there. Got {place}, which is not.")
    hub = _hub()
    try:
        return Path(hub.snapshot_download(folder_or_repo, allow_patterns=[CONFIG, WEIGHTS], **options))
    except TypeError:  # an option that is none
        raise
    except Exception as error:  # what the hub raises depends on where the network ends
        reason = str(error).strip().splitlines()
        raise PriorGraphError(
            f"A saved model must be in a folder or on the hub. Got {show(folder_or_repo)}, which is no "
            f"folder here, and the hub did not give it: {reason[0] if reason else type(error).__name__}"
        ) from error


def _load(kind: type[_MODEL], place: Path, device: str | torch.device | None) -> _MODEL:
    stored = _read_config(place / CONFIG)
    if stored["model"] != kind.__name__:
        raise PriorGraphError(
            f"{kind.__name__} loads only what it saved. {place / CONFIG} was written by a "
            f"{show(stored['model'])}. Use its from_pretrained."
        )
    graph = _graph_of(stored, place / CONFIG)
    state = _read_weights(place / WEIGHTS, stored["weights_sha256"])
    builder = cast("Callable[..., Any]", kind)
    # Without memory first: sizes a stranger wrote are compared with the weights before they are believed,
    # and no random number is drawn.
    with torch.device("meta"):
        model = builder(graph, **_known_options(kind, graph, stored["config"], place / CONFIG))
    model.to(_DTYPES[stored["dtype"]])
    try:
        check_checkpoint(model, state)
    except RuntimeError as error:
        raise PriorGraphError(f"{place / WEIGHTS} must fit {CONFIG} beside it. {error}") from error
    model.to_empty(device=torch.device("cpu") if device is None else device)
    load_checkpoint(model, state)
    return cast("_MODEL", model.eval())


def _read_config(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PriorGraphError(f"A saved model must have {CONFIG}. There is none in {path.parent}.") from None
    except (ValueError, RecursionError) as error:
        raise PriorGraphError(f"{path} must be JSON, whole. It is damaged: {error}.") from error
    if not isinstance(stored, dict):
        raise PriorGraphError(f"{path} must hold a JSON object. Got a {type(stored).__name__}.")
    version = stored.get("format_version")
    if type(version) is int and version > FORMAT_VERSION:
        raise PriorGraphError(
            f"{path} must have a format this version reads, {FORMAT_VERSION} at most. Got {version}, written "
            f"by pyg_kpnn {show(stored.get('pyg_kpnn_version'))}. Install a newer pyg_kpnn."
        )
    _check_keys(stored, _KEYS, str(path))
    for key, kind in _KEYS.items():
        if type(stored[key]) is not kind:
            raise PriorGraphError(f"{key!r} in {path} must be a {kind.__name__}. Got {show(stored[key])}.")
    if stored["format_version"] < 1:
        raise PriorGraphError(f"'format_version' in {path} must be at least 1. Got {version}.")
    if stored["dtype"] not in _DTYPES:
        raise PriorGraphError(
            f"'dtype' in {path} must be one of {', '.join(_DTYPES)}. Got {show(stored['dtype'])}."
        )
    return stored


def _check_keys(stored: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    unknown = [key for key in stored if key not in known]
    if unknown:
        raise PriorGraphError(
            f"{where} must hold only known keys. Got {unknown_names(unknown, list(known))}."
        )
    missing = [key for key in known if key not in stored]
    if missing:
        hint = near_names(missing[0], list(stored))
        raise PriorGraphError(f"{where} must have the key {missing[0]!r}. It is not there{hint}.")


def _graph_of(stored: Mapping[str, Any], path: Path) -> PriorGraph:
    try:
        graph = PriorGraph.from_dict(stored["prior"])
    except PriorGraphError as error:
        raise PriorGraphError(f"'prior' in {path} must be a graph. {error}") from error
    if graph.fingerprint != stored["fingerprint"]:
        raise PriorGraphError(
            f"'prior' in {path} must be the graph that was saved, with fingerprint "
            f"{show(stored['fingerprint'][:12])}. Got a graph with {graph.fingerprint[:12]!r}: names, "
            "edges, signs or weights were changed."
        )
    return graph


def _known_options(kind: Any, graph: PriorGraph, config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The constructor's arguments; they are the keys of ``config`` of any model of that class."""
    import inspect

    parameters = list(inspect.signature(kind).parameters)[1:]
    _check_keys(config, dict.fromkeys(parameters), f"'config' in {path}")
    return config


def _read_weights(path: Path, digest: str) -> dict[str, Tensor]:
    safetensors = _safetensors()
    if not path.is_file():
        raise PriorGraphError(f"A saved model must have {WEIGHTS}. There is none in {path.parent}.")
    if _sha256(path) != digest:
        raise PriorGraphError(
            f"{path} must be the file that {CONFIG} beside it was written with; its SHA-256 differs. It is "
            "damaged, or of another save."
        )
    try:
        return dict(safetensors.load_file(path))
    except Exception as error:  # safetensors has its own error, and others for other damage
        raise PriorGraphError(f"{path} must be a safetensors file, whole. {error}") from error


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError('Sharing models needs safetensors: pip install "pyg_kpnn[hub]".') from error
    return safetensors.torch


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError('The hub needs huggingface_hub: pip install "pyg_kpnn[hub]".') from error
    return huggingface_hub
