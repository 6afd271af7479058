#include "lockstep/comm/engines/tcp/schedule.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>

namespace lockstep::inline v0::tcp {
namespace {

constexpr int kDirectRanks = 8;  // up to here a small collective sends to all ranks at once

// The elements [begin, begin + count).
struct Extent {
  int64_t begin = 0;
  int64_t count = 0;
};

// Part `index` of `parts` nearly equal parts.
Extent part_of(Extent whole, int64_t index, int64_t parts) {
  const int64_t begin = whole.count * index / parts;
  const int64_t end = whole.count * (index + 1) / parts;
  return {whole.begin + begin, end - begin};
}

class Builder {
 public:
  Builder(const Call& call, int rank, int size, const ScheduleSizes& sizes)
      : call_(call),
        rank_(rank),
        size_(size),
        element_(static_cast<int64_t>(c10::elementSize(call.dtype))),
        piece_elements_(std::max<int64_t>(1, sizes.piece_bytes / element_)),
        sizes_(sizes) {}

  Schedule build();

 private:
  int at(int distance) const { return ((rank_ + distance) % size_ + size_) % size_; }
  Piece piece(Place place, Extent extent) const {
    return {place, extent.begin * element_, extent.count * element_};
  }
  bool is_small(int64_t bytes) const { return bytes <= sizes_.small_bytes; }

  int32_t add(Step step, std::initializer_list<int32_t> after = {}) {
    const auto index = static_cast<int32_t>(schedule_.steps.size());
    schedule_.steps.push_back(std::move(step));
    for (const int32_t earlier : after) order(earlier, index);
    return index;
  }
  void order(int32_t earlier, int32_t later) {
    if (earlier >= 0) schedule_.edges.emplace_back(earlier, later);
  }
  int32_t send(int peer, Piece from, std::initializer_list<int32_t> after = {}) {
    return add({Step::Kind::kSend, peer, from, {}}, after);
  }
  int32_t receive(int peer, Piece to) { return add({Step::Kind::kReceive, peer, to, {}}); }
  int32_t copy(Piece to, Piece from) {
    if (to.bytes == 0) return -1;
    return add({Step::Kind::kCopy, -1, to, {from}});
  }

  // Calls fn with consecutive extents of at most one piece.
  void pieces(Extent whole, const std::function<void(Extent)>& fn) const {
    for (int64_t done = 0; done < whole.count; done += piece_elements_)
      fn({whole.begin + done, std::min(piece_elements_, whole.count - done)});
  }
  // Moves `whole` in pieces; sends no frame if it is empty.
  void send_all(int peer, Place place, Extent whole) {
    pieces(whole, [&](Extent e) { send(peer, piece(place, e)); });
  }
  void receive_all(int peer, Place place, Extent whole) {
    pieces(whole, [&](Extent e) { receive(peer, piece(place, e)); });
  }

  Extent part(const std::vector<int64_t>& counts, int rank) const {
    return {std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}), counts[rank]};
  }
  static int64_t sum(const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }

  void barrier();
  void broadcast();
  void reduce();
  void all_reduce();
  void gather();
  void all_gather();
  void scatter();
  void reduce_scatter();
  void all_to_all();
  void reduce_at_root();
  void reduce_everywhere();
  void bruck(int64_t count);

  // The additions by owners, block by block. The callers differ in what they do with a finished
  // piece.
  struct Owned {
    std::vector<Extent> parts;  // the input's parts, by owner
    // The destination of the owner's sum of `extent`; extents are those of the input.
    std::function<Piece(Extent)> result;
    // Spreads a block once the pieces of this rank's part have been added; gets the steps that
    // added them. If it tells every rank that an owner has finished a block, it returns, by owner,
    // the step that does so; otherwise tokens tell it.
    std::function<std::vector<int32_t>(int64_t block, const std::vector<int32_t>& added)> spread;
    bool tokens = false;
  };
  void reduce_by_owners(const Owned& owned);
  int64_t blocks(int64_t elements) const {
    return std::max<int64_t>(1,
                             (elements * element_ + sizes_.block_bytes - 1) / sizes_.block_bytes);
  }

  const Call& call_;
  const int rank_;
  const int size_;
  const int64_t element_;
  const int64_t piece_elements_;
  const ScheduleSizes& sizes_;
  Schedule schedule_;
};

// In round k every rank notifies the one 2^k further on, after it has received the messages of all
// earlier rounds.
void Builder::barrier() {
  std::vector<int32_t> heard;
  for (int distance = 1; distance < size_; distance *= 2) {
    const int32_t step = send(at(distance), {});
    for (const int32_t earlier : heard) order(earlier, step);
    heard.push_back(receive(at(-distance), {}));
  }
}

void Builder::broadcast() {
  const Extent whole{0, call_.count};
  const int virtual_rank = (rank_ - call_.root + size_) % size_;
  const auto real = [&](int v) { return (v + call_.root) % size_; };
  if (!is_small(call_.count * element_) && size_ > 2) {
    pieces(whole, [&](Extent e) {
      const Piece p = piece(Place::kOutput, e);
      const int32_t got = virtual_rank > 0 ? receive(at(-1), p) : -1;
      if (virtual_rank + 1 < size_) send(at(1), p, {got});
    });
    return;
  }
  // v's parent is v without its highest bit; v's children have one more bit above it.
  std::vector<int32_t> got;
  int first_child = 1;
  if (virtual_rank > 0) {
    int high = 1;
    while (high * 2 <= virtual_rank) high *= 2;
    pieces(whole, [&](Extent e) {
      got.push_back(receive(real(virtual_rank - high), piece(Place::kOutput, e)));
    });
    first_child = high * 2;
  }
  for (int bit = first_child; virtual_rank + bit < size_; bit *= 2) {
    size_t i = 0;
    pieces(whole, [&](Extent e) {
      send(real(virtual_rank + bit), piece(Place::kOutput, e), {got.empty() ? -1 : got[i++]});
    });
  }
}

void Builder::reduce_by_owners(const Owned& owned) {
  int64_t elements = 0;
  for (const Extent& part : owned.parts) elements += part.count;
  const int64_t count = blocks(elements);
  const Extent mine = owned.parts[rank_];
  const int64_t frame = (mine.count + count - 1) / count;  // the largest block of this rank's part
  const int64_t parities = std::min<int64_t>(count, 2);
  const int64_t base = schedule_.scratch_bytes / element_;
  schedule_.scratch_bytes += parities * (size_ - 1) * frame * element_;

  // The place of `from`'s values of `extent`, a piece of block `block` of this rank's part.
  const auto slot = [&](int from, int64_t block, Extent extent) {
    const int64_t index = (block % 2) * (size_ - 1) + (from < rank_ ? from : from - 1);
    const Extent whole = part_of(mine, block, count);
    return piece(Place::kScratch,
                 {base + index * frame + extent.begin - whole.begin, extent.count});
  };
  // free[b % 2][owner] is the step after which block b + 2 may be sent to `owner`.
  std::vector<std::vector<int32_t>> free(2, std::vector<int32_t>(size_, -1));
  // arrived[b % 2] holds the receives of this rank's pieces, piece after piece.
  std::vector<std::vector<std::vector<int32_t>>> arrived(2);

  const auto inputs = [&](int64_t block) {
    auto& receives = arrived[block % 2];
    receives.clear();
    pieces(part_of(mine, block, count), [&](Extent) { receives.emplace_back(); });
    for (int d = 1; d < size_; ++d) {
      const int to = at(d);
      pieces(part_of(owned.parts[to], block, count),
             [&](Extent e) { send(to, piece(Place::kInput, e), {free[block % 2][to]}); });
      size_t i = 0;
      pieces(part_of(mine, block, count),
             [&](Extent e) { receives[i++].push_back(receive(at(-d), slot(at(-d), block, e))); });
    }
  };
  const auto outputs = [&](int64_t block) {
    std::vector<int32_t> added;
    size_t i = 0;
    pieces(part_of(mine, block, count), [&](Extent e) {
      Step step{Step::Kind::kReduce, -1, owned.result ? owned.result(e) : Piece{}, {}};
      for (int r = 0; r < size_; ++r)
        step.from.push_back(r == rank_ ? piece(Place::kInput, e) : slot(r, block, e));
      // Without a destination of its own the sum overwrites the values of the first other rank.
      if (!owned.result) step.piece = slot(rank_ == 0 ? 1 : 0, block, e);
      const int32_t index = add(std::move(step));
      for (const int32_t receive : arrived[block % 2][i]) order(receive, index);
      ++i;
      added.push_back(index);
    });
    std::vector<int32_t> last = added;
    if (owned.spread) last = owned.spread(block, added);
    if (!owned.tokens) {
      free[block % 2] = last;
      return;
    }
    if (block + 2 >= count) return;
    for (int d = 1; d < size_; ++d) {
      if (mine.count > 0) {
        const int32_t token = send(at(d), {});
        for (const int32_t step : last) order(step, token);
      }
      if (owned.parts[at(-d)].count > 0) free[block % 2][at(-d)] = receive(at(-d), {});
    }
  };
  inputs(0);
  if (count > 1) inputs(1);
  for (int64_t block = 0; block < count; ++block) {
    outputs(block);
    if (block + 2 < count) inputs(block + 2);
  }
}

// Copies all ranks' inputs into the scratch memory, `count` elements each; slot j has those of rank
// (rank + j) % size. Each round doubles a rank's data.
void Builder::bruck(int64_t count) {
  schedule_.scratch_bytes = size_ * count * element_;
  const int32_t own = copy(piece(Place::kScratch, {0, count}), piece(Place::kInput, {0, count}));
  std::vector<int32_t> have{own};
  for (int filled = 1; filled < size_; filled *= 2) {
    const int more = std::min(filled, size_ - filled);
    std::vector<int32_t> got;
    // The slots are sent in pieces, because frames have a maximum size.
    const Extent whole{0, more * count};
    pieces(whole, [&](Extent e) {
      const int32_t step = send(at(-filled), piece(Place::kScratch, e));
      for (const int32_t earlier : have) order(earlier, step);
    });
    pieces({filled * count, more * count},
           [&](Extent e) { got.push_back(receive(at(filled), piece(Place::kScratch, e))); });
    have.insert(have.end(), got.begin(), got.end());
  }
}

void Builder::reduce_everywhere() {
  const int64_t count = call_.count;
  Step sum{Step::Kind::kReduce, -1, piece(Place::kOutput, {0, count}), {}};
  if (size_ > kDirectRanks) {
    bruck(count);
    const auto last = static_cast<int32_t>(schedule_.steps.size());
    for (int r = 0; r < size_; ++r)
      sum.from.push_back(piece(Place::kScratch, {((r - rank_ + size_) % size_) * count, count}));
    const int32_t index = add(std::move(sum));
    for (int32_t i = 0; i < last; ++i) order(i, index);
    return;
  }
  schedule_.scratch_bytes = (size_ - 1) * count * element_;
  std::vector<int32_t> before;
  std::vector<Piece> from(size_);
  from[rank_] = piece(Place::kInput, {0, count});
  for (int d = 1; d < size_; ++d) {
    before.push_back(send(at(d), piece(Place::kInput, {0, count})));
    from[at(-d)] = piece(Place::kScratch, {(d - 1) * count, count});
    before.push_back(receive(at(-d), from[at(-d)]));
  }
  sum.from = std::move(from);
  const int32_t index = add(std::move(sum));
  for (const int32_t step : before) order(step, index);
}

void Builder::all_reduce() {
  const int64_t count = call_.count;
  if (is_small(count * element_ * (size_ - 1))) {
    reduce_everywhere();
    return;
  }
  Owned owned;
  for (int r = 0; r < size_; ++r) owned.parts.push_back(part_of({0, count}, r, size_));
  owned.result = [this](Extent e) { return piece(Place::kOutput, e); };
  const int64_t block_count = blocks(count);
  owned.spread = [&](int64_t block, const std::vector<int32_t>& added) {
    // My part goes to the right piece after piece; pieces from the left are passed on, except the
    // part of the rank on the right.
    std::vector<int32_t> finished(size_, -1);
    std::vector<std::vector<int32_t>> got(size_);
    got[rank_] = added;
    for (int hop = 0; hop + 1 < size_; ++hop) {
      size_t i = 0;
      pieces(part_of(owned.parts[at(-hop)], block, block_count),
             [&](Extent e) { send(at(1), piece(Place::kOutput, e), {got[at(-hop)][i++]}); });
      const int owner = at(-hop - 1);
      pieces(part_of(owned.parts[owner], block, block_count),
             [&](Extent e) { got[owner].push_back(receive(at(-1), piece(Place::kOutput, e))); });
      if (!got[owner].empty()) finished[owner] = got[owner].back();
    }
    return finished;
  };
  reduce_by_owners(owned);
}

void Builder::reduce_at_root() {
  const Extent whole{0, call_.count};
  if (rank_ != call_.root) {
    send_all(call_.root, Place::kInput, whole);
    return;
  }
  schedule_.scratch_bytes = (size_ - 1) * call_.count * element_;
  std::vector<std::vector<int32_t>> got;
  pieces(whole, [&](Extent) { got.emplace_back(); });
  const auto place = [&](int r, Extent e) {
    const int64_t index = r < rank_ ? r : r - 1;
    return piece(Place::kScratch, {index * call_.count + e.begin, e.count});
  };
  for (int d = 1; d < size_; ++d) {
    size_t i = 0;
    pieces(whole, [&](Extent e) { got[i++].push_back(receive(at(d), place(at(d), e))); });
  }
  size_t i = 0;
  pieces(whole, [&](Extent e) {
    Step step{Step::Kind::kReduce, -1, piece(Place::kOutput, e), {}};
    for (int r = 0; r < size_; ++r)
      step.from.push_back(r == rank_ ? piece(Place::kInput, e) : place(r, e));
    const int32_t index = add(std::move(step));
    for (const int32_t receive : got[i]) order(receive, index);
    ++i;
  });
}

void Builder::reduce() {
  const int64_t count = call_.count;
  if (is_small(count * element_)) {
    reduce_at_root();
    return;
  }
  const bool is_root = rank_ == call_.root;
  Owned owned;
  owned.tokens = true;
  for (int r = 0; r < size_; ++r) owned.parts.push_back(part_of({0, count}, r, size_));
  if (is_root) owned.result = [this](Extent e) { return piece(Place::kOutput, e); };
  const int64_t block_count = blocks(count);
  owned.spread = [&](int64_t block, const std::vector<int32_t>& added) {
    if (!is_root) {
      std::vector<int32_t> sent;
      for (const int32_t step : added)
        sent.push_back(send(call_.root, schedule_.steps[step].piece, {step}));
      return sent;
    }
    for (int d = 1; d < size_; ++d)
      receive_all(at(d), Place::kOutput, part_of(owned.parts[at(d)], block, block_count));
    return added;
  };
  reduce_by_owners(owned);
}

void Builder::reduce_scatter() {
  Owned owned;
  owned.tokens = true;
  for (int r = 0; r < size_; ++r) owned.parts.push_back(part(call_.counts, r));
  const int64_t begin = owned.parts[rank_].begin;
  owned.result = [this, begin](Extent e) {
    return piece(Place::kOutput, {e.begin - begin, e.count});
  };
  reduce_by_owners(owned);
}

void Builder::gather() {
  if (rank_ != call_.root) {
    send_all(call_.root, Place::kInput, {0, call_.counts[rank_]});
    return;
  }
  const Extent mine = part(call_.counts, rank_);
  copy(piece(Place::kOutput, mine), piece(Place::kInput, {0, mine.count}));
  for (int d = 1; d < size_; ++d) receive_all(at(d), Place::kOutput, part(call_.counts, at(d)));
}

void Builder::all_gather() {
  const Extent mine = part(call_.counts, rank_);
  const int32_t own = copy(piece(Place::kOutput, mine), piece(Place::kInput, {0, mine.count}));
  if (is_small(sum(call_.counts) * element_) && size_ <= kDirectRanks) {
    for (int d = 1; d < size_; ++d) {
      send_all(at(d), Place::kInput, {0, mine.count});
      receive_all(at(-d), Place::kOutput, part(call_.counts, at(-d)));
    }
    return;
  }
  std::vector<int32_t> got;
  pieces(mine, [&](Extent) { got.push_back(own); });
  for (int hop = 0; hop + 1 < size_; ++hop) {
    size_t i = 0;
    pieces(part(call_.counts, at(-hop)),
           [&](Extent e) { send(at(1), piece(Place::kOutput, e), {got[i++]}); });
    got.clear();
    pieces(part(call_.counts, at(-hop - 1)),
           [&](Extent e) { got.push_back(receive(at(-1), piece(Place::kOutput, e))); });
  }
}

void Builder::scatter() {
  if (rank_ != call_.root) {
    receive_all(call_.root, Place::kOutput, {0, call_.counts[rank_]});
    return;
  }
  const Extent mine = part(call_.counts, rank_);
  copy(piece(Place::kOutput, {0, mine.count}), piece(Place::kInput, mine));
  for (int d = 1; d < size_; ++d) send_all(at(d), Place::kInput, part(call_.counts, at(d)));
}

void Builder::all_to_all() {
  const Extent mine = part(call_.counts, rank_);
  copy(piece(Place::kOutput, part(call_.recv_counts, rank_)), piece(Place::kInput, mine));
  for (int d = 1; d < size_; ++d) {
    send_all(at(d), Place::kInput, part(call_.counts, at(d)));
    receive_all(at(-d), Place::kOutput, part(call_.recv_counts, at(-d)));
  }
}

Schedule Builder::build() {
  switch (call_.op) {
    case Op::kBarrier:
      barrier();
      break;
    case Op::kBroadcast:
      broadcast();
      break;
    case Op::kReduce:
    case Op::kAllReduce:
      if (call_.count == 0) break;
      if (size_ == 1) {
        // The average of a single rank is its value.
        copy(piece(Place::kOutput, {0, call_.count}), piece(Place::kInput, {0, call_.count}));
      } else if (call_.op == Op::kReduce) {
        reduce();
      } else {
        all_reduce();
      }
      break;
    case Op::kGather:
      gather();
      break;
    case Op::kAllGather:
      all_gather();
      break;
    case Op::kScatter:
      scatter();
      break;
    case Op::kReduceScatter:
      if (size_ == 1)
        copy(piece(Place::kOutput, {0, call_.counts[0]}),
             piece(Place::kInput, {0, call_.counts[0]}));
      else
        reduce_scatter();
      break;
    case Op::kAllToAll:
      all_to_all();
      break;
    case Op::kSend:
    case Op::kRecv:
      break;
  }
  return std::move(schedule_);
}

}  // namespace

Schedule make_schedule(const Call& call, int rank, int size, const ScheduleSizes& sizes) {
  return Builder(call, rank, size, sizes).build();
}

}  // namespace lockstep::inline v0::tcp
