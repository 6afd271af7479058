// What the processors' copies allow: the ranks share all buffers, and each copies the bytes that
// its part of an operation reads and writes.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/bench/collectives.h"
#include "lockstep/bench/contender.h"

namespace lockstep::inline v0::bench {
namespace {

class CopyContender final : public Contender {
 public:
  explicit CopyContender(const Communicator& comm)
      : Contender(kCopies, false, comm.rank(), comm.size()), comm_(comm) {}

  std::string obstacle(const BenchCase& c) const override {
    if (comm_.local_size() != size_) return "copies need all ranks on one host";
    if (!comm_.host_capabilities().shared_memory)
      return "copies need a backend with shared memory (LOCKSTEP_BACKEND)";
    switch (c.op) {
      case Op::kAllReduce:
      case Op::kBroadcast:
      case Op::kAllGather:
      case Op::kReduceScatter:
      case Op::kAllToAll:
        return "";
      default:
        return std::string("the copies of ") + to_string(c.op) + " are not measured";
    }
  }

  // By pieces that stay in the nearest cache, so that each byte comes from memory once. Stores past
  // the caches were slower (25 MiB: 3.5 times), since a piece is read again that was just written.
  void run() override {
    const size_t longest = buffers_.front().nbytes() / static_cast<size_t>(size_);
    for (size_t begin = 0; begin < longest; begin += kPiece) copy_pieces(begin);
  }

  void verify(int64_t) const override {}  // nothing is reduced

  void release() override {
    Contender::release();
    buffers_.clear();
  }

 private:
  static constexpr size_t kPiece = 16 << 10;
  // A buffer, or a part of one.
  struct Span {
    std::byte* data;
    size_t bytes;
  };

  // From this byte of each part on.
  void copy_pieces(size_t begin) const {
    const auto copy = [begin](Span from, Span to) {
      if (begin < from.bytes)
        std::memcpy(to.data + begin, from.data + begin, std::min(kPiece, from.bytes - begin));
    };
    for (int step = 0; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      switch (case_.op) {
        case Op::kAllReduce:  // reads its part of each buffer, and writes its part of each
          copy(share(in((peer + 1) % size_), rank_), share(out(peer), rank_));
          break;
        case Op::kBroadcast:  // the root writes one part of each buffer, its rank the others
          if (rank_ == 0 && peer != 0) copy(share(in(0), 0), share(out(peer), 0));
          if (rank_ != 0 && peer != 0) copy(share(in(0), peer), share(out(rank_), peer));
          break;
        case Op::kAllGather:
          copy(in(peer), share(out(rank_), peer));
          break;
        case Op::kReduceScatter:
          copy(share(in(peer), rank_), out(rank_));
          break;
        default:
          copy(share(in(peer), rank_), share(out(rank_), peer));
      }
    }
  }

  at::Tensor make_buffer(int64_t elements, at::ScalarType dtype) override {
    buffers_.push_back(comm_.shared_empty({size_, elements}, dtype));
    return buffers_.back()[rank_];
  }

  Span in(int rank) const { return row(buffers_.front(), rank); }
  Span out(int rank) const { return row(buffers_.back(), rank); }
  Span row(const at::Tensor& buffers, int rank) const {
    const size_t bytes = buffers.nbytes() / static_cast<size_t>(size_);
    return {static_cast<std::byte*>(buffers.mutable_data_ptr()) + bytes * static_cast<size_t>(rank),
            bytes};
  }
  // The rank's part of a buffer of the operation's whole size.
  Span share(Span whole, int rank) const {
    const size_t width = c10::elementSize(case_.dtype), elements = whole.bytes / width;
    const auto r = static_cast<size_t>(rank), ranks = static_cast<size_t>(size_);
    const size_t begin = elements * r / ranks, end = elements * (r + 1) / ranks;
    return {whole.data + begin * width, (end - begin) * width};
  }

  Communicator comm_;
  std::vector<at::Tensor> buffers_;  // of all ranks: the input, and the output where it is another
};

}  // namespace

std::unique_ptr<Contender> make_copy_contender(const Communicator& comm) {
  return std::make_unique<CopyContender>(comm);
}

}  // namespace lockstep::inline v0::bench
