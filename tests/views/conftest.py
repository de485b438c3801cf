import pytest
from support.tracing import small_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("small"), small_model()
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder
