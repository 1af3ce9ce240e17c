"""Groups: which layers share a block table, so that all groups draw equal blocks from one pool (vLLM 0.32)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.errors import Refusal
from planner.kv_specs import GROWING, KvSpec

Cached = tuple[int, KvSpec]  # the layer it belongs to, and its cache
Group = list[Cached]


def grouped(caches: Sequence[Cached], packed: bool) -> list[Group]:
    """Caches split into groups (vllm/v1/core/kv_cache_utils.get_kv_cache_groups).

    One pace of growth needs one group. Otherwise pages are made equal, and each kind is dealt into groups of one size;
    with packed pages (DeepSeek-V4) groups only need equal numbers of pattern repeats.
    """
    if not caches:
        return []
    if len({spec.family for _, spec in caches}) == 1 and len({spec.kind == "state" for _, spec in caches}) == 1:
        return [list(caches)]
    if packed:
        return _packed(caches)
    return _equal_sized(_equal_pages(caches))


def _equal_pages(caches: Sequence[Cached]) -> list[Cached]:
    """Every page as large as the largest: by more tokens where the ratio is whole, else by padding.

    Latent pages cannot be padded: vLLM then treats windowed layers as full, which one group holds.
    """
    largest = max(spec.page_size_bytes for _, spec in caches)
    unified: dict[KvSpec, KvSpec] = {}
    for _, spec in caches:
        if spec in unified:
            continue
        if spec.kind == "state" or spec.page_size_bytes == largest:
            unified[spec] = replace(spec, page_size_bytes=largest)
        elif largest % spec.page_size_bytes == 0:
            ratio = largest // spec.page_size_bytes
            unified[spec] = replace(spec, block_size=spec.block_size * ratio, content=spec.content * ratio,
                                    page_size_bytes=largest)  # fmt: skip
        elif spec.kind in ("latent", "indexer"):
            raise Refusal("Latent pages do not divide the largest page of this model, and vLLM cannot pad them.")
        else:
            unified[spec] = replace(spec, page_size_bytes=largest)
    return [(index, unified[spec]) for index, spec in caches]


def _equal_sized(caches: Sequence[Cached]) -> list[Group]:
    """Each kind dealt into groups as large as the smallest kind, or as the largest where they are close."""
    buckets: Mapping[KvSpec, Group] = defaultdict(list)
    for index, spec in caches:
        buckets[spec].append((index, spec))
    sizes = [len(bucket) for bucket in buckets.values()]
    size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    groups = []
    for bucket in buckets.values():
        count = -(-len(bucket) // size)
        groups += [bucket[i::count] for i in range(count)]
    return groups


def _packed(caches: Sequence[Cached]) -> list[Group]:
    """Groups of equal pattern repeats; a kind with unequal counts of page sizes stays whole."""
    families: Mapping[tuple[str, int | None, int], Group] = defaultdict(list)
    for index, spec in caches:
        families[spec.family].append((index, spec))
    patterns = {}
    for family, members in families.items():
        pages: Mapping[int, Group] = defaultdict(list)
        for cached in members:
            pages[cached[1].page_size_bytes].append(cached)
        lengths = {len(page) for page in pages.values()}
        patterns[family] = (pages, lengths.pop() if len(lengths) == 1 else 0)
    floor = max((repeats for pages, repeats in patterns.values() if repeats and len(pages) > 1), default=0)
    if not floor:
        return [list(members) for members in families.values()]
    per_group = _least_padding([repeats for _, repeats in patterns.values() if repeats], floor)
    groups = []
    for family, (pages, repeats) in patterns.items():
        count = -(-repeats // per_group) if repeats else 1
        if count == 1:
            groups.append(list(families[family]))
            continue
        rows = list(zip(*pages.values(), strict=True))
        groups += [[cached for row in rows[i::count] for cached in row] for i in range(count)]
    return groups


def _least_padding(values: Sequence[int], floor: int) -> int:
    """The size of at least `floor` to whose multiples these round up with the least waste; the largest of equals.

    >>> _least_padding([43, 21, 20], 21)
    22
    """
    return min(range(floor, max(*values, floor) + 1), key=lambda size: (sum(-value % size for value in values), -size))


def stage_of_layer(layers: int, stages: int) -> list[int]:
    """Pipeline stage of each layer; a remainder goes to the stages before the last (vLLM distributed/utils.py).

    >>> stage_of_layer(7, 3)
    [0, 0, 1, 1, 1, 2, 2]
    """
    counts = [layers // stages] * stages
    for i in range(2, layers % stages + 2):
        counts[-i] += 1
    return [stage for stage, count in enumerate(counts) for _ in range(count)]


def grows(spec: KvSpec) -> bool:
    """Needs another block as the request gets longer, whatever its length."""
    return spec.kind in GROWING
