"""The documents that members of a mixture keep for val (held-out documents).

They are found before the mixture is read. Neither train nor val of the mixture contains a held-out document.

    how a member is split       which of its documents are held out
    upstream's split, val_frac  the documents that the member's stream puts into val; for val_frac, the seed of the configuration chooses
    token budgets, in parts     the head of each part, as its plan divides the budget, tokenized once more
    token budgets               the documents at which the budget of val is met, in the order of the member's own build, tokenized once more

So the order of builds changes no byte. If a member has `decontaminate`, documents of all members that equal (or are near to) its val are
held out, too. If a member has `decontaminate_against`, documents of all members that overlap the texts that it names are held out, for the
same reasons as in the member's own train.

Cost: one look-up per document, and the val of members with token budgets is tokenized once more. With decontaminate, the comparison costs
as much as in a build (streaming/decontaminate.py), on one thread. Memory: if a member is split by token budgets, about 100 bytes for each
document of its val. With decontaminate, also the memory of dedup/text_set.py. All of this is bounded by the size of val.
"""

import hashlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Self

from niels_cache_assets.base.config_path import is_name
from niels_cache_assets.base.documents import Document, SourceReport
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.interleave import MixtureMember
from niels_cache_assets.sources.reading.references import named_data_sets, questions, revision_of_val
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_assets.streaming.decontaminate import (
    REASONS,
    ReferenceOrigin,
    ReferenceTexts,
    Screen,
    open_references,
    references_identity,
)
from niels_cache_assets.streaming.encode import DocumentEncoder, has_lone_surrogate
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.intake import as_documents, in_lists
from niels_cache_assets.streaming.shuffle import shuffled
from niels_cache_assets.streaming.splits import UNLIMITED, BudgetSplitter, encoded_head
from niels_cache_assets.tokenizer.kinds import TextTokenizer, view_tokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPES, token_dtype_name

MEMBER_VAL = "member_val"
COPY_REASONS = {kind: f"{reason}_of_member" for kind, reason in REASONS.items()}


class HeldOutDocuments:
    """The documents that members keep for val, found once for all passes of a build.

    Use it as a context manager, because with decontaminate it keeps files in `root`.

    Args:
        registry: The configuration.
        root: The folder for temporary files.
        siblings: All pretrain tables by name, as in StreamContext.
        tokenizer: The tokenizer, which is required if a member is split by token budgets. None if it is not built.
    """

    def __init__(self, registry: Registry, *, root: Path, siblings: Mapping[str, PretrainSource], tokenizer: TextTokenizer | None) -> None:
        self._registry, self._root, self._siblings, self._tokenizer = registry, root, siblings, tokenizer
        self._keys: dict[str, frozenset[bytes]] = {}
        self._vals: list[Screen] = []
        self._references: list[Screen] = []
        self._open = ExitStack()
        self.seed = registry.build.seed  # the seed with which the members' own builds shuffle and split

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def find(self, member: MixtureMember) -> None:
        """Find the documents that one member keeps for val, unless they are already known.

        Call this method for all members before you call `sort` for any member.
        """
        name, log = member.name, member.context.log
        if name in self._keys:
            return
        source = self._registry.pretrain[name]
        compared = source.decontaminate != "off"
        keys = frozenset[bytes]()
        if source.val_tokens or compared:
            log(f"reading the val of {name}, to leave it out" + (", and documents like it" if compared else ""))
            val = self.val_documents(member)
            if compared:
                val = self._indexed(source, val)
            keys = frozenset(map(_key, val))
        self._keys[name] = keys if source.val_tokens else frozenset()
        if source.decontaminate_against:
            references = reference_texts(self._registry, source, StreamContext(seed=self.seed, siblings=self._siblings, log=log), self)
            self._references.append(self._open.enter_context(open_references(references, folder=self._root)))

    def val_documents(self, member: MixtureMember) -> Iterable[Document]:
        """Return the val of one data set, lazily."""
        if member.has_heads:
            return chain.from_iterable(self._first_tokens(member.name, documents, tokens) for tokens, documents in member.heads())
        documents = member.documents(SourceReport())
        if self._registry.pretrain[member.name].val_tokens:
            return self._within_budget(member.name, documents)
        return (document for document in documents if document.split == "val")

    def sort(self, name: str, documents: Iterable[Document]) -> Iterator[tuple[Document, str | None]]:
        """Yield each document of a member with the reason to leave it out, or with None to keep it.

        Raises:
            NielsCacheError: If several documents of the member have the same origin as one held-out document.
        """
        keys, found = self._keys[name], 0

        def kept_for_val(document: Document) -> bool:
            nonlocal found
            if document.split == "val":
                return True
            if not keys or _key(document) not in keys:
                return False
            found += 1
            if found > len(keys):
                raise NielsCacheError(
                    f"{name}: several of its documents have the same file, row and source_id ({document.source_id!r:.80}), so its"
                    " documents of val cannot be told apart from the rest; its source must give each document its own"
                )
            return True

        screens = [*self._vals, *self._references]
        if not screens:
            for document in documents:
                yield document, MEMBER_VAL if kept_for_val(document) else None
            return
        for chunk in in_lists(documents):
            reasons = {position: MEMBER_VAL for position, document in enumerate(chunk) if kept_for_val(document)}
            for screen in screens:
                left = [at for at, document in enumerate(chunk) if at not in reasons and not has_lone_surrogate(document.text)]
                found_here = zip(left, screen.find([chunk[at].text for at in left]), strict=True)
                reasons |= {position: reason for position, reason in found_here if reason is not None}
            for position, document in enumerate(chunk):
                yield document, reasons.get(position)

    def _within_budget(self, name: str, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield the documents that fill the budget of val, in the order in which build_pretrain_cache takes them.

        No document after these is yielded.
        """
        member = self._registry.pretrain[name]
        is_full = yield from self._first_tokens(name, documents, member.val_tokens or 0, shuffle_buffer=member.shuffle_buffer)
        if not is_full:
            raise NielsCacheError(
                f"{name}: its source ends before val has its {member.val_tokens:,} tokens, so no document is left to mix; lower its"
                " val_tokens"
            )

    def _first_tokens(
        self, name: str, documents: Iterable[Document], tokens: int, *, shuffle_buffer: int = 0
    ) -> Generator[Document, None, bool]:
        """Yield the documents that fill a budget of val of a member, and return whether the budget is met."""
        if self._tokenizer is None:
            raise NielsCacheError(
                f"{name} is split by token budgets, so the tokenizer is needed to find its val; build the tokenizer first"
            )
        view = view_tokenizer(self._tokenizer)
        splitter = BudgetSplitter(max_train_tokens=UNLIMITED, max_val_tokens=tokens, eot=view.eot)
        stream = as_documents(in_lists(documents))
        if shuffle_buffer:
            stream = shuffled(stream, buffer_size=shuffle_buffer, seed=self.seed)
        dtype = TOKEN_DTYPES[token_dtype_name(view.vocab_size)]
        encoder = DocumentEncoder(tokenizer=view, dtype=dtype, threads=self._registry.build.threads)
        encode = partial(encoder.encode, feed=Feed.of((), SourceReport()))
        with closing(encoded_head(stream, encode, splitter)) as batches:
            for batch in batches:
                is_val = splitter.val_mask(batch)
                yield from batch.documents[is_val]
                splitter.assign(batch)
        return splitter.val_is_full

    def _indexed(self, member: PretrainSource, val: Iterable[Document]) -> Iterator[Document]:
        """Yield the documents of a member's val, and keep their texts, with which `sort` compares the documents of all members."""
        from niels_cache_assets.dedup.text_set import TextSet

        near = member.decontaminate_threshold if member.decontaminate == "near" else None
        texts = self._open.enter_context(TextSet(near=near, folder=self._root))
        for chunk in in_lists(val):
            texts.add_new([document.text for document in chunk if not has_lone_surrogate(document.text)])
            yield from chunk
        texts.seal()
        self._vals.append(Screen(texts=texts, reasons=COPY_REASONS))


def reference_texts(
    registry: Registry, source: PretrainSource, context: StreamContext, held_out: HeldOutDocuments | None
) -> ReferenceTexts:
    """Return the texts that `decontaminate_against` keeps out of train: files of questions, and the val of other data sets.

    Args:
        registry: The configuration.
        source: The table with `decontaminate_against`.
        context: The context in which other data sets are opened.
        held_out: Finds the val of data sets with token budgets. It may be None if `texts` is not called.
    """

    def texts() -> Iterator[tuple[ReferenceOrigin, str]]:
        for name, other in named_data_sets(source.decontaminate_against, context.siblings).items():
            context.log(f"reading the val of {name}, to keep it out of train")
            for document in _val_of(name, other, context, held_out):
                if not has_lone_surrogate(document.text):
                    yield ReferenceOrigin(name, document.file, document.row), document.text
        for pattern in source.decontaminate_against:
            if not is_name(pattern):
                for question in questions(pattern, context.log, with_code=source.decontaminate_units == "code"):
                    if not has_lone_surrogate(question.text):
                        yield ReferenceOrigin("", question.file, question.row), question.text

    return ReferenceTexts(
        identity=references_identity(source, seed=registry.build.seed)["decontaminate_against"],
        texts=texts,
        threshold=source.decontaminate_threshold,
        share=source.decontaminate_share,
        run=source.decontaminate_words,
        units=source.decontaminate_units,
    )


def _val_of(name: str, source: PretrainSource, context: StreamContext, held_out: HeldOutDocuments | None) -> Iterator[Document]:
    """Yield the val of another data set, as its own build splits it. Its cache need not exist."""
    assert held_out is not None
    revisions = {name: revision_of_val(source, context.siblings)}
    member = MixtureMember(name, source, replace(context, start=None, revisions=revisions, held_out=held_out))
    return iter(held_out.val_documents(member))


def _key(document: Document) -> bytes:
    """Return a key that identifies a document of a stream by its origin (file, row and source id)."""
    origin = f"{document.file}\0{document.row}\0{document.source_id}"
    return hashlib.blake2b(origin.encode("utf-8", "surrogatepass"), digest_size=16).digest()
