"""Models: the architectures, the Model that the rest of the package sees, and whatever makes logits."""

import logging

# Where torchao is installed, importing transformers imports it, and it logs what it could not load: nothing to us, so it is
# imported here once, quietly.
_LOGGERS = {logging.getLogger(name): logging.getLogger(name).level for name in ("torchao", "torch.utils._pytree")}
for _logger in _LOGGERS:
    _logger.setLevel(logging.ERROR)
import transformers.modeling_utils  # noqa: E402, F401

for _logger, _level in _LOGGERS.items():
    _logger.setLevel(_level)
