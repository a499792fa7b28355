from __future__ import annotations

import pytest

from tokpipe.corpus import CorpusConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpus": ""}, "corpus must name"),
        ({"text_documents": "page"}, "must be one of file, line, blank-line, got 'page'"),
        ({"split_bytes": 0}, "at least 1, got 0"),
        ({"text_column": ""}, "dotted path"),
        ({"text_column": "a..b"}, "dotted path"),
        ({"sources": (("", "*"),)}, "NAME=GLOB"),
        ({"sources": (("a/b", "*"),)}, "NAME=GLOB"),
        ({"sources": (("a", ""),)}, "NAME=GLOB"),
    ],
)
def test_corpus_config_refuses_what_cannot_work(settings, message):
    with pytest.raises(ValueError, match=message):
        CorpusConfig(**{"corpus": "raw", **settings})
