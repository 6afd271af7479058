"""Every operation of torch.distributed over lockstep: against what the inputs must give, and against gloo."""
import itertools
import unittest

import torch
import torch.distributed as dist

import ranks

SIZE = 3
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = [*FLOATS, *INTEGERS, *COMPLEX, torch.bool, torch.uint16, torch.uint32, torch.float8_e4m3fn]
GLOO = {torch.float32, torch.float64, torch.float16, torch.uint8, torch.int8, torch.int32, torch.int64, torch.complex64}
SHAPES = [(), (0,), (7,), (3, 5), (211, 97), (20_011,)]
GLOO_SHAPES = [(7,), (20_011,)]  # it crashes on 0-dim tensors and takes transposed ones for what they are not
Op = dist.ReduceOp


def given(rank, dtype, shape, salt=0):
    """A rank's input: small whole numbers, so that sums have no rounding. Rectangles come transposed."""
    generator = torch.Generator().manual_seed(1000 * rank + salt)
    values = torch.randint(1, 4, tuple(reversed(shape)), generator=generator)
    if dtype == torch.bool:
        values = values > 2
    elif dtype.is_complex:
        values = torch.complex(values.double(), values.double() - 2)
    return values.to(dtype).t() if len(shape) == 2 else values.to(dtype)


def same(got, expected):
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    if got.dtype.itemsize == 1 or not got.dtype.is_floating_point and not got.dtype.is_complex:
        got, expected = got.contiguous(), expected.contiguous()
        return got.numel() == 0 or torch.equal(got.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))
    return torch.equal(got, expected)


def empty(dtype, shape):
    return torch.zeros(shape, dtype=torch.int32).to(dtype)


# Moving: name -> (group, rank, dtype, shape) -> results, expected.
def broadcast(group, rank, dtype, shape):
    tensor = given(rank, dtype, shape).clone()
    dist.broadcast(tensor, 1, group=group)
    return [tensor], [given(1, dtype, shape)]


def all_gather(group, rank, dtype, shape):
    parts = [empty(dtype, shape) for _ in range(SIZE)]
    dist.all_gather(parts, given(rank, dtype, shape), group=group)
    return parts, [given(r, dtype, shape) for r in range(SIZE)]


def all_gather_into_tensor(group, rank, dtype, shape):
    whole = empty(dtype, (SIZE, *shape))
    dist.all_gather_into_tensor(whole, given(rank, dtype, shape).contiguous(), group=group)
    return list(whole.unbind()), [given(r, dtype, shape) for r in range(SIZE)]


def gather(group, rank, dtype, shape):
    parts = [empty(dtype, shape) for _ in range(SIZE)] if rank == 2 else None
    dist.gather(given(rank, dtype, shape), parts, dst=2, group=group)
    return parts or [], [given(r, dtype, shape) for r in range(SIZE)] if rank == 2 else []


def scatter(group, rank, dtype, shape):
    tensor = empty(dtype, shape)
    parts = [given(10 + r, dtype, shape) for r in range(SIZE)] if rank == 0 else None
    dist.scatter(tensor, parts, src=0, group=group)
    return [tensor], [given(10 + rank, dtype, shape)]


def all_to_all(group, rank, dtype, shape):
    parts = [empty(dtype, shape) for _ in range(SIZE)]
    dist.all_to_all(parts, [given(rank, dtype, shape, salt=r) for r in range(SIZE)], group=group)
    return parts, [given(r, dtype, shape, salt=rank) for r in range(SIZE)]


def all_to_all_single(group, rank, dtype, shape):
    # Rank r sends r + d + 1 rows to rank d.
    rows = sum(rank + d + 1 for d in range(SIZE))
    result = empty(dtype, (rows, *shape))
    values = [given(rank, dtype, shape, salt=d).expand(rank + d + 1, *shape) for d in range(SIZE)]
    dist.all_to_all_single(result, torch.cat(values), [rank + s + 1 for s in range(SIZE)],
                           [rank + d + 1 for d in range(SIZE)], group=group)
    return [result], [torch.cat([given(s, dtype, shape, salt=rank).expand(s + rank + 1, *shape) for s in range(SIZE)])]


def send_recv(group, rank, dtype, shape):
    tensor = empty(dtype, shape)
    works = [dist.irecv(tensor, (rank - 1) % SIZE, group=group, tag=4),
             dist.isend(given(rank, dtype, shape).contiguous(), (rank + 1) % SIZE, group=group, tag=4)]
    for work in works:
        work.wait()
    return [tensor], [given((rank - 1) % SIZE, dtype, shape)]


MOVES = [broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all, all_to_all_single, send_recv]


# Reducing.
def reduced(op, inputs):
    def step(a, b):
        if op == Op.PRODUCT:
            return a * b
        if op == Op.MIN:
            return torch.minimum(a, b)
        if op == Op.MAX:
            return torch.maximum(a, b)
        if op in (Op.BAND, Op.BOR, Op.BXOR):
            return {Op.BAND: a & b, Op.BOR: a | b, Op.BXOR: a ^ b}[op]
        return a + b

    result = inputs[0]
    for tensor in inputs[1:]:
        result = step(result, tensor)
    if op != Op.AVG:
        return result
    if result.is_complex():  # both parts by themselves
        return torch.view_as_complex(torch.view_as_real(result.contiguous()) / SIZE)
    return (result / SIZE).to(result.dtype)


def all_reduce(group, rank, dtype, shape, op):
    tensor = given(rank, dtype, shape)
    dist.all_reduce(tensor, op, group=group)
    return [tensor], [reduced(op, [given(r, dtype, shape) for r in range(SIZE)])]


def all_reduce_coalesced(group, rank, dtype, shape, op):
    tensors = [given(rank, dtype, shape, salt) for salt in range(2)]
    dist.all_reduce_coalesced(tensors, op, group=group)
    return tensors, [reduced(op, [given(r, dtype, shape, salt) for r in range(SIZE)]) for salt in range(2)]


def reduce(group, rank, dtype, shape, op):
    tensor = given(rank, dtype, shape)
    dist.reduce(tensor, 1, op, group=group)
    if rank != 1:  # unspecified by torch.distributed
        return [], []
    return [tensor], [reduced(op, [given(r, dtype, shape) for r in range(SIZE)])]


def reduce_scatter(group, rank, dtype, shape, op):
    tensor = empty(dtype, shape)
    dist.reduce_scatter(tensor, [given(rank, dtype, shape, salt=d) for d in range(SIZE)], op, group=group)
    return [tensor], [reduced(op, [given(r, dtype, shape, salt=rank) for r in range(SIZE)])]


def reduce_scatter_tensor(group, rank, dtype, shape, op):
    tensor = empty(dtype, shape)
    whole = torch.stack([given(rank, dtype, shape, salt=d) for d in range(SIZE)])
    if shape:
        whole = whole.flatten(0, 1)
    dist.reduce_scatter_tensor(tensor, whole, op, group=group)
    return [tensor], [reduced(op, [given(r, dtype, shape, salt=rank) for r in range(SIZE)])]


REDUCTIONS = [all_reduce, all_reduce_coalesced, reduce, reduce_scatter, reduce_scatter_tensor]


def combinations():
    for operation, dtype, shape in itertools.product(MOVES, MOVED, SHAPES):
        yield operation, (dtype, shape), dtype in GLOO
    for operation, dtype, shape in itertools.product(REDUCTIONS, [*FLOATS, *INTEGERS, *COMPLEX], SHAPES):
        ops = [Op.SUM]
        if not dtype.is_complex:
            ops += [Op.PRODUCT, Op.MIN, Op.MAX]
        ops += [Op.AVG] if dtype in FLOATS or dtype.is_complex else []
        ops += [Op.BAND, Op.BOR, Op.BXOR] if dtype in INTEGERS else []
        for op in ops:
            yield operation, (dtype, shape, op), dtype in GLOO and not (op == Op.AVG and dtype.is_complex)


def check_all(rank):
    gloo = dist.new_group(backend="gloo")
    failures, checked, compared = [], 0, 0
    for operation, arguments, with_gloo in combinations():
        name = f"{operation.__name__} {arguments} on rank {rank}"
        got, expected = operation(None, rank, *arguments)
        checked += 1
        if len(got) != len(expected) or not all(same(g, e) for g, e in zip(got, expected)):
            failures.append(f"{name}: {got} is not {expected}" if len(str(got)) < 500 else name)
            continue
        if not with_gloo or arguments[1] not in GLOO_SHAPES:
            continue
        try:
            theirs, _ = operation(gloo, rank, *arguments)
        except (RuntimeError, ValueError):  # what gloo refuses, it refuses on every rank
            continue
        compared += 1
        if not all(same(g, t) for g, t in zip(got, theirs)):
            failures.append(f"{name}: gloo has another result")
    return failures, checked, compared


class Operations(unittest.TestCase):
    def test_every_operation_dtype_and_shape(self):
        for failures, checked, compared in ranks.run(SIZE, check_all, within=300):
            self.assertEqual(failures, [])
            self.assertGreater(checked, 1000)
            self.assertGreater(compared, 300)


def premultiplied(rank):
    tensor = torch.full((4,), float(rank + 1))
    op = dist._make_nccl_premul_sum(0.5)
    dist.all_reduce(tensor, op)
    scattered = torch.zeros(2)
    whole = torch.arange(6.0)
    dist.reduce_scatter_tensor(scattered, whole, dist._make_nccl_premul_sum(torch.tensor(2.0)))
    untouched = torch.equal(whole, torch.arange(6.0))
    return tensor.tolist(), scattered.tolist(), untouched


def coalesced(rank):
    results = [[torch.zeros(2), torch.zeros(3, 1)] for _ in range(SIZE)]
    dist.all_gather_coalesced(results, [torch.full((2,), float(rank)), torch.full((3, 1), 10.0 * rank)])
    ok = all(torch.equal(a, torch.full((2,), float(r))) and torch.equal(b, torch.full((3, 1), 10.0 * r))
             for r, (a, b) in enumerate(results))
    group = dist.group.WORLD
    outputs = [torch.zeros(SIZE), torch.zeros(2 * SIZE)]
    group.allgather_into_tensor_coalesced(outputs, [torch.full((1,), float(rank)), torch.full((2,), 5.0)]).wait()
    ok &= outputs[0].tolist() == [0.0, 1.0, 2.0] and outputs[1].tolist() == [5.0] * 6
    outputs = [torch.zeros(1), torch.zeros(2)]
    group.reduce_scatter_tensor_coalesced(outputs, [torch.arange(3.0), torch.ones(6)]).wait()
    return ok and outputs[0].tolist() == [3.0 * rank] and outputs[1].tolist() == [3.0, 3.0]


def uneven(rank):
    parts = [torch.zeros(r + 1) for r in range(SIZE)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank)))
    ok = all(torch.equal(p, torch.full((r + 1,), float(r))) for r, p in enumerate(parts))
    mine = torch.zeros(rank + 1)
    dist.reduce_scatter(mine, [torch.full((r + 1,), float(r)) for r in range(SIZE)])
    return ok and torch.equal(mine, torch.full((rank + 1,), 3.0 * rank))


def sparse(rank):
    def mine(r, dtype):
        # Rank 2 has nothing; the others share entries; entry 0 comes twice.
        index = torch.tensor([[0, 0, r + 1], [1, 1, 0]]) if r < 2 else torch.zeros((2, 0), dtype=torch.int64)
        value = torch.full((index.shape[1], 2), r + 1).to(dtype)
        return torch.sparse_coo_tensor(index, value, (4, 2, 2), check_invariants=True)

    for dtype in (torch.float32, torch.int64):
        tensor = mine(rank, dtype)
        dist.all_reduce(tensor)
        expected = sum((mine(r, dtype).to_dense() for r in range(1, SIZE)), mine(0, dtype).to_dense())
        if not torch.equal(tensor.to_dense(), expected):
            return f"{dtype}: {tensor.to_dense()} is not {expected}"
    # Work queued behind the three steps of a sparse sum keeps its order.
    tensor, dense = mine(rank, torch.float32), torch.ones(5)
    works = [dist.all_reduce(tensor, async_op=True), dist.all_reduce(dense, async_op=True)]
    for work in reversed(works):
        work.wait()
    return "ok" if torch.equal(dense, torch.full((5,), 3.0)) else f"{dense}"


def from_any_source(rank):
    if rank != 0:
        dist.send(torch.full((40_000,), float(rank)), 0, tag=9)  # of another tag, and in the way
        for i in range(20):
            dist.send(torch.tensor([rank * 100 + i]), 0, tag=5)
        return None
    last = {1: -1, 2: -1}
    for _ in range(40):
        got = torch.zeros(1, dtype=torch.int64)
        source = dist.recv(got, tag=5)
        value = got.item()
        if value // 100 != source or value % 100 != last[source] + 1:
            return f"{value} from {source}"
        last[source] += 1
    big = torch.zeros(40_000)
    for source in (2, 1):
        dist.recv(big, source, tag=9)
        if big[-1] != source:
            return f"{big[-1]} from {source} with tag 9"
    return "ok"


class Further(unittest.TestCase):
    def test_premultiplied_sums(self):
        for rank, result in enumerate(ranks.run(SIZE, premultiplied)):
            self.assertEqual(result, ([3.0] * 4, [6.0 * (2 * rank), 6.0 * (2 * rank + 1)], True))

    def test_coalesced_forms(self):
        self.assertEqual(ranks.run(SIZE, coalesced), [True] * SIZE)

    def test_unequal_parts(self):
        self.assertEqual(ranks.run(SIZE, uneven), [True] * SIZE)

    def test_sparse_sums(self):
        self.assertEqual(ranks.run(SIZE, sparse), ["ok"] * SIZE)

    def test_receives_from_any_source(self):
        self.assertEqual(ranks.run(SIZE, from_any_source)[0], "ok")


if __name__ == "__main__":
    unittest.main(verbosity=2)
