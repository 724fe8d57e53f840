"""What tasks send back from other processes."""

import pickle

import pytest

from shared.bpe import SourceError
from shared.bpe.errors import TooLongError
from trainer.storage.folder import StorageError
from trainer.text.utf8 import CorpusError


@pytest.mark.parametrize("error", [TooLongError("a.txt", 9, "such as x"), CorpusError("a"), StorageError("b")], ids=str)
def test_errors_arrive_as_they_were_raised(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert isinstance(again, SourceError) == isinstance(error, SourceError)
