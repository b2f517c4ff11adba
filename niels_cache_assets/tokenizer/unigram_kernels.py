"""The loop of `unigram_words` over the bytes of texts, compiled by numba. Import this module only if numba is installed.

A word is a run of blanks with the characters after it, up to the next blank, or one line feed. No piece crosses the end of a word
(unigram_words.py checks this), so only a sum of scores passes from one word to the next. SentencePiece adds 32-bit numbers from the start
of a text on, and rounds each sum. `_search` computes the same sums, so it finds the same pieces, even where two segmentations are equally
good. SentencePiece begins a new sum where a sum passes -100,000, which changes the rounding. A text that may get there is left to
SentencePiece.

The pieces of a short word are kept in a table, with the lead of the best segmentation: by how much it beats the second best one, at the end
of each of its pieces. They are used again only where the lead is larger than all rounding errors together, because the errors depend on the
sum before the word. So the result does not depend on the table. If the table is full, it is emptied.

Positions are unsigned, because numba would check whether a signed position counts from the end. Each array is an argument of its own,
because numba counts references to an array that it takes from a tuple, which would take three times as long.
"""

import numpy as np
from numba import njit

LONGEST_WORD = 1536  # bytes; a text with a longer word is left out
LONGEST_KEPT = 40  # bytes of a word in the table
REFUSED = -2  # instead of the id of a piece that no text may have
WORST_SCORE = 64.0  # no character may cost more; no score is above 0
LOWEST_SUM = -100_000.0  # kScoreResetThreshold of SentencePiece 0.2.3

_ZERO, _ONE, _EIGHT = np.uint64(0), np.uint64(1), np.uint64(8)
_FACTOR, _START = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x2545F4914F6CDD1D)
_EDGE_SHIFT, _MIX_SHIFT, _PLACE_SHIFT = np.uint64(40), np.uint64(29), np.uint64(13)
_BLANK, _LINE_FEED = np.uint8(0x20), np.uint8(0x0A)
_ROUNDING = 2.0**-24  # the largest relative error of a sum of two 32-bit numbers
_FAR = np.float32(-1.0e38)

_compiled = njit(cache=True, nogil=True)


@_compiled
def _errors(total, length):  # type: ignore[no-untyped-def]
    """Return an upper bound of all rounding errors of the sums in a word of `length` bytes, after the sum `total`."""
    return 4.0 * (length + 2) * _ROUNDING * (WORST_SCORE * (length + 1) - total)


@_compiled
def _search(  # type: ignore[no-untyped-def]
    source, begin, length, total, nodes, scores, byte_ids, unknown, sums, seconds, starts, found, steps, way, way_scores
):
    """Write the ids of a word to `way`, last one first, and their scores to `way_scores`, and return (number of ids, lead).

    The number is -1 if a text with this word must be encoded whole.

    Args:
        source: Bytes of the texts, as in `encode`.
        begin: Where the word begins in `source`.
        length: Bytes of the word.
        total: float32, the sum before the word.
        nodes: See unigram_words.VocabularyTrie.
        scores: See unigram_words.VocabularyTrie.
        byte_ids: See `bytes` in unigram_words.VocabularyTrie.
        unknown: See unigram_words.VocabularyTrie.
        sums: Array with room for a word, as are all that follow.
        seconds: Sums of the second best segmentations.
        starts: Where the best piece that ends at a position begins.
        found: Id of that piece.
        steps: Score of that piece.
        way: Receives the ids.
        way_scores: Receives the scores.
    """
    mask = np.uint64(len(nodes) - 1)
    for place in range(length + 1):
        starts[place] = -1
        seconds[place] = _FAR
    sums[0] = total
    start = 0
    while start < length:
        byte = source[begin + np.uint64(start)]
        size = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        here = sums[start]
        node = mask
        is_single = False
        place = start
        while place < length:
            edge = (node << _EIGHT) | np.uint64(source[begin + np.uint64(place)])
            key = np.int32(edge)
            node = (edge * _FACTOR) >> _EDGE_SHIFT & mask
            while nodes[node, 0] != key and nodes[node, 0] != -1:
                node = (node + _ONE) & mask
            if nodes[node, 0] == -1:
                break
            place += 1
            piece = nodes[node, 1]
            if piece == -1:
                continue
            if piece == REFUSED:
                return -1, 0.0
            is_single = is_single or place == start + size
            step = scores[piece]
            score = np.float32(here + step)
            if starts[place] == -1 or score > sums[place]:
                if starts[place] != -1:
                    seconds[place] = sums[place]
                sums[place], steps[place] = score, step
                starts[place], found[place] = start, piece
            elif score > seconds[place]:
                seconds[place] = score
        if not is_single:
            place = start + size
            score = np.float32(here + unknown)
            if starts[place] == -1 or score > sums[place]:
                if starts[place] != -1:
                    seconds[place] = sums[place]
                sums[place], steps[place] = score, unknown
                starts[place], found[place] = start, -1
            elif score > seconds[place]:
                seconds[place] = score
        start += size
    count = 0
    lead = 1.0e300
    place = length
    while place > 0:
        lead = min(lead, np.float64(sums[place]) - np.float64(seconds[place]))
        start = starts[place]
        if found[place] >= 0:
            way[count], way_scores[count] = found[place], steps[place]
            count += 1
        else:  # the bytes of a character without a piece: the first of them has the score
            step = steps[place]
            while place > start:
                place -= 1
                byte = source[begin + np.uint64(place)]
                if byte_ids[byte] < 0 or byte == _BLANK:
                    return -1, 0.0
                way[count], way_scores[count] = byte_ids[byte], np.float32(0.0)
                count += 1
            way_scores[count - 1] = step
        place = start
    return count, lead


@_compiled
def encode(  # type: ignore[no-untyped-def]
    source, ends, is_line_feed_alone, nodes, scores, byte_ids, unknown, rows, leads, pool, pool_scores, pool_bytes, filled, ids, lengths
):
    """Write the ids of each text back to back, and return the number of ids.

    Args:
        source: (bytes,) uint8, the texts, with a blank before each text.
        ends: (texts,) int64, the end of each text in `source`.
        is_line_feed_alone: Whether no piece has a line feed beside other characters.
        nodes: See unigram_words.VocabularyTrie.
        scores: See unigram_words.VocabularyTrie.
        byte_ids: See `bytes` in unigram_words.VocabularyTrie.
        unknown: See unigram_words.VocabularyTrie.
        rows: See unigram_words.WordTable.
        leads: See unigram_words.WordTable.
        pool: See unigram_words.WordTable.
        pool_scores: See unigram_words.WordTable.
        pool_bytes: See unigram_words.WordTable.
        filled: See unigram_words.WordTable.
        ids: (bytes,) int32, receives the ids.
        lengths: (texts,) int64, receives the number of ids of each text, -1 for a text that must be encoded whole.
    """
    sums, steps = np.empty(LONGEST_WORD + 4, np.float32), np.empty(LONGEST_WORD + 4, np.float32)
    seconds = np.empty(LONGEST_WORD + 4, np.float32)
    starts, found = np.empty(LONGEST_WORD + 4, np.int64), np.empty(LONGEST_WORD + 4, np.int32)
    way, way_scores = np.empty(LONGEST_WORD + 4, np.int32), np.empty(LONGEST_WORD + 4, np.float32)
    mask = np.uint64(len(rows) - 1)
    position = _ZERO
    written = 0
    for text in range(len(ends)):
        end = np.uint64(ends[text])
        first_id = written
        total = np.float32(0.0)
        is_whole = False
        if position + _ONE == end:  # an empty text has no ids
            position = end
        while position < end:
            begin = position
            value = _START
            if is_line_feed_alone and source[position] == _LINE_FEED:
                value = (value ^ np.uint64(_LINE_FEED)) * _FACTOR
                position += _ONE
            else:
                while position < end and source[position] == _BLANK:
                    value = (value ^ np.uint64(_BLANK)) * _FACTOR
                    position += _ONE
                while position < end:
                    byte = source[position]
                    if byte == _BLANK or (is_line_feed_alone and byte == _LINE_FEED):
                        break
                    value = (value ^ np.uint64(byte)) * _FACTOR
                    position += _ONE
            length = np.int64(position - begin)
            if length > LONGEST_WORD or total - WORST_SCORE * (length + 1) < LOWEST_SUM:
                is_whole = True
                break
            key = np.int64(((value ^ (value >> _MIX_SHIFT)) >> _ONE) | _ONE)  # 0 stands for a free row
            place = (value >> _PLACE_SHIFT) & mask
            while rows[place, 0] != 0:
                if rows[place, 0] == key and rows[place, 2] == length:
                    first = np.uint64(4 * (rows[place, 1] + 2 * rows[place, 3]))
                    same = _ZERO
                    while same < np.uint64(length) and pool_bytes[first + same] == source[begin + same]:
                        same += _ONE
                    if same == np.uint64(length):
                        break
                place = (place + _ONE) & mask
            is_kept = rows[place, 0] != 0
            if is_kept and leads[place, 4] > _errors(total, length):
                first = np.uint64(rows[place, 1])
                count = rows[place, 3]
                for index in range(count):
                    ids[written + index] = pool[first]
                    total += pool_scores[first + _ONE]
                    first += np.uint64(2)
            else:
                before = total
                count, lead = _search(
                    source, begin, length, total, nodes, scores, byte_ids, unknown, sums, seconds, starts, found, steps, way, way_scores
                )
                if count < 0:
                    is_whole = True
                    break
                total = sums[length]
                for index in range(count):
                    ids[written + index] = way[count - 1 - index]
                if length <= LONGEST_KEPT and not is_kept:
                    number, first_free = filled[0], filled[1]
                    after = first_free + 2 * count + (length + 3) // 4
                    if 2 * number >= len(rows) or after > len(pool):
                        rows[:, 0] = 0
                        filled[:] = 0
                    else:
                        rows[place, 0], rows[place, 1], rows[place, 2], rows[place, 3] = key, first_free, length, count
                        leads[place, 4] = lead - _errors(before, length)
                        for index in range(count):
                            pool[first_free + 2 * index] = way[count - 1 - index]
                            pool_scores[first_free + 2 * index + 1] = way_scores[count - 1 - index]
                        first_byte = 4 * (first_free + 2 * count)
                        for index in range(length):
                            pool_bytes[first_byte + index] = source[begin + np.uint64(index)]
                        filled[0], filled[1] = number + 1, after
            written += count
        lengths[text] = written - first_id
        if is_whole:
            lengths[text] = -1
            written = first_id
            position = end
    return written
