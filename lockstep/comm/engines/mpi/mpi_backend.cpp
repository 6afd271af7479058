#include "lockstep/comm/engines/mpi/mpi_backend.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <list>
#include <mutex>
#include <numeric>
#include <thread>

#include "lockstep/comm/backend/foreign_capabilities.h"
#include "lockstep/comm/engines/mpi/mpi_group.h"
#include "lockstep/comm/engines/mpi/mpi_library.h"
#include "lockstep/comm/engines/mpi/mpi_meeting.h"
#include "lockstep/comm/engines/mpi/mpi_process.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"

namespace lockstep::inline v0 {
namespace {

using mpi::Datatype;
using mpi::Library;
using mpi::RequestHandle;

// MPI counts elements in int.
constexpr int64_t kMostElements = std::numeric_limits<int>::max();
constexpr int64_t kChunk = int64_t{1} << 30;  // elements per message; a longer message is split

Capabilities mpi_capabilities() {
  Capabilities c = foreign_capabilities("mpi");
  for (const Op op :
       {Op::kGather, Op::kAllGather, Op::kScatter, Op::kReduceScatter, Op::kAllToAll}) {
    c.v_ops[static_cast<int>(op)] = true;
  }
  c.move_dtypes = all_dtypes();
  c.reduce_dtypes |= bit(at::kShort);
  return c;
}

// Data that is only moved is sent as an integer of its size.
Datatype mpi_type(const Library& mpi, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return mpi.handle.float32;
    case at::kDouble:
      return mpi.handle.float64;
    case at::kHalf:
    case at::kBFloat16:
      return mpi.handle.uint16;
    case at::kChar:
      return mpi.handle.int8;
    case at::kShort:
      return mpi.handle.int16;
    case at::kInt:
      return mpi.handle.int32;
    case at::kLong:
      return mpi.handle.int64;
    default:
      return mpi.handle.uint8;
  }
}

mpi::Operator mpi_operator(const Library& mpi, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return mpi.handle.sum;
    case ReduceOp::kProduct:
      return mpi.handle.product;
    case ReduceOp::kMin:
      return mpi.handle.min;
    case ReduceOp::kMax:
      return mpi.handle.max;
    case ReduceOp::kBitAnd:
      return mpi.handle.bit_and;
    case ReduceOp::kBitOr:
      return mpi.handle.bit_or;
    case ReduceOp::kBitXor:
      return mpi.handle.bit_xor;
    case ReduceOp::kAvg:
      break;
  }
  LOCKSTEP_CHECK(false, "averages are composed");
}

// A pending operation: MPI's requests and the objects that they need.
struct MpiOperation {
  std::string text;  // for errors
  std::vector<RequestHandle> requests;
  std::vector<int> send_counts, send_offsets, recv_counts, recv_offsets;
  int64_t expected_bytes = -1;  // the size that a receive expects
  int64_t received_bytes = 0;
  bool done = false;
  std::exception_ptr error;
};

std::vector<int> offsets_of(const std::vector<int>& counts) {
  std::vector<int> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
  return offsets;
}

bool all_equal(const std::vector<int64_t>& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

class MpiBackend final : public Backend {
 public:
  MpiBackend(std::shared_ptr<const mpi::World> world, mpi::Comm comm, const MpiOptions& options)
      : capabilities_(mpi_capabilities()),
        world_(std::move(world)),
        mpi_(world_->library()),
        comm_(comm),
        rank_(options.rank),
        spins_(options.local_size <= usable_cpu_count() ? 2000 : 0) {}

  // Frees this process's objects: in Open MPI and MPICH that tells the peers nothing. On a thread
  // that may not call MPI they are left to MPI_Finalize.
  ~MpiBackend() override {
    if (!std::all_of(pending_.begin(), pending_.end(), [](const auto& op) { return op->done; })) {
      mpi::give_up_finalizing();
      return;
    }
    if (!mpi::usable(mpi_) || refuses_caller() != nullptr) return;
    const std::lock_guard lock(mpi::call_mutex());
    if (!mpi::answering()) return;
    mpi_.call.comm_free(&comm_);
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  const char* refuses_caller() const noexcept override { return world_->refuses_caller(); }

  std::unique_ptr<Request> start(const Call& call) override {
    auto op = std::make_shared<MpiOperation>();
    op->text = "#" + std::to_string(call.sequence) + " " + describe(call) + " over mpi";
    const std::lock_guard lock(mpi::call_mutex());
    mpi::check_answering();
    submit(call, *op);
    pending_.push_back(op);
    return std::make_unique<MpiRequest>(*this, std::move(op));
  }

  void progress() override {
    const std::lock_guard lock(mpi::call_mutex());
    if (!mpi::answering()) return;  // requests say so
    for (const auto& op : pending_) advance(*op);
    pending_.remove_if([](const auto& op) { return op->done; });
  }

  // MPI's only function for it ends every rank at once; the peers' errors must come first.
  void abort(const Breakage&) noexcept override { mpi::give_up_finalizing(); }

 private:
  class MpiRequest final : public Request {
   public:
    MpiRequest(MpiBackend& backend, std::shared_ptr<MpiOperation> op)
        : backend_(backend), op_(std::move(op)) {}
    bool poll() override {
      backend_.progress();
      if (op_->error) std::rethrow_exception(op_->error);
      if (!op_->done) mpi::check_answering();
      return op_->done;
    }
    void wait(Deadline deadline) override { backend_.wait(*op_, deadline); }

   private:
    MpiBackend& backend_;
    std::shared_ptr<MpiOperation> op_;
  };

  void wait(MpiOperation& op, Deadline deadline) {
    constexpr double kSleepAfterSeconds = 0.2;
    double warn_at = 10;
    for (int64_t turn = 1; !op.done; ++turn) {
      {
        const std::lock_guard lock(mpi::call_mutex());
        mpi::check_answering();
        advance(op);
      }
      if (op.done) break;
      if (turn < spins_) continue;  // every test lets MPI make progress
      ::sched_yield();
      if (turn % 64 != 0) continue;
      if (deadline.expired()) {
        throw Timeout(op.text + " waited " + std::to_string(deadline.timeout_seconds()) +
                      " s on rank " + std::to_string(rank_) +
                      "; a rank is late, or called something else");
      }
      const double elapsed = deadline.elapsed_seconds();
      if (elapsed > warn_at) {
        log_warning(op.text + " has waited " + std::to_string(static_cast<int>(elapsed)) + " s");
        warn_at *= 3;
      }
      if (elapsed > kSleepAfterSeconds) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    const std::lock_guard lock(mpi::call_mutex());
    pending_.remove_if([](const auto& pending) { return pending->done; });
    if (op.error) std::rethrow_exception(op.error);
  }

  // mpi::call_mutex() is held.
  void advance(MpiOperation& op) {
    while (!op.done && !op.requests.empty()) {
      int flag = 0;
      mpi::Status status;
      const int code = mpi_.call.test(&op.requests.back(), &flag, &status);
      if (code != mpi::kSuccess) {
        fail(op, code);
        return;
      }
      if (flag == 0) return;
      if (op.expected_bytes >= 0) op.received_bytes += mpi_.received_bytes(status);
      op.requests.pop_back();
    }
    if (op.done) return;
    op.done = true;
    if (op.expected_bytes >= 0 && op.received_bytes != op.expected_bytes) {
      mpi::give_up_finalizing();
      op.error = std::make_exception_ptr(
          Mismatch(op.text + " expected " + std::to_string(op.expected_bytes) +
                   " bytes, but the message has " + std::to_string(op.received_bytes)));
    }
  }

  void fail(MpiOperation& op, int code) {
    mpi::give_up_finalizing();
    const std::string line = op.text + " failed: " + mpi_.error_text(code);
    op.error = mpi_.is_truncation(code)
                   ? std::make_exception_ptr(Mismatch(line + "; a rank sent more than expected"))
                   : std::make_exception_ptr(PeerLost(line + "; a rank may be gone", -1));
    op.done = true;
  }

  void check(const MpiOperation& op, int code) const {
    if (code == mpi::kSuccess) return;
    mpi::give_up_finalizing();
    throw PeerLost(op.text + " could not be started: " + mpi_.error_text(code), -1);
  }

  static std::vector<int> to_ints(const MpiOperation& op, const std::vector<int64_t>& counts) {
    if (std::accumulate(counts.begin(), counts.end(), int64_t{0}) > kMostElements) {
      throw InvalidArgument(op.text + ": MPI counts in int, so unequal parts may have " +
                            std::to_string(kMostElements) + " elements in all; send fewer at once");
    }
    return {counts.begin(), counts.end()};
  }

  // Calls start(first element, elements, request) for pieces that MPI's int can count.
  template <typename Start>
  void in_chunks(int64_t count, MpiOperation& op, const Start& start) {
    int64_t first = 0;
    do {
      const int64_t n = std::min(count - first, kChunk);
      op.requests.push_back(mpi_.handle.request_null);
      check(op, start(first, static_cast<int>(n), &op.requests.back()));
      first += n;
    } while (first < count);
  }

  void submit(const Call& call, MpiOperation& op) {
    static std::byte nothing;  // without elements any pointer is valid
    const auto* input = call.input != nullptr ? call.input : &nothing;
    auto* output = call.output != nullptr ? call.output : &nothing;
    const auto& f = mpi_.call;
    const Datatype type = mpi_type(mpi_, call.dtype);
    const auto width = static_cast<int64_t>(c10::elementSize(call.dtype));
    const bool in_place = call.input == call.output;
    const bool is_root = rank_ == call.root;
    const auto reducer = [&] { return mpi_operator(mpi_, call.reduce); };

    switch (call.op) {
      case Op::kBroadcast:
        return in_chunks(call.count, op, [&](int64_t first, int n, RequestHandle* request) {
          return f.ibcast(output + first * width, n, type, call.root, comm_, request);
        });
      case Op::kReduce:
        return in_chunks(call.count, op, [&](int64_t first, int n, RequestHandle* request) {
          const void* from = is_root && in_place ? mpi_.in_place() : input + first * width;
          return f.ireduce(from, output + (is_root ? first * width : 0), n, type, reducer(),
                           call.root, comm_, request);
        });
      case Op::kAllReduce:
        return in_chunks(call.count, op, [&](int64_t first, int n, RequestHandle* request) {
          const void* from = in_place ? mpi_.in_place() : input + first * width;
          return f.iallreduce(from, output + first * width, n, type, reducer(), comm_, request);
        });
      case Op::kSend:
        return in_chunks(call.count, op, [&](int64_t first, int n, RequestHandle* request) {
          return f.isend(input + first * width, n, type, call.peer, call.tag, comm_, request);
        });
      case Op::kRecv:
        op.expected_bytes = call.count * width;
        return in_chunks(call.count, op, [&](int64_t first, int n, RequestHandle* request) {
          return f.irecv(output + first * width, n, type, call.peer, call.tag, comm_, request);
        });
      default:
        break;
    }
    op.requests.push_back(mpi_.handle.request_null);
    check(op, submit_parts(call, input, output, type, op));
  }

  // Whether this rank's contribution to a gather already lies in its part of the result, which MPI
  // must be told.
  bool is_own_part(const Call& call) const {
    if (call.op == Op::kGather ? rank_ != call.root : call.op != Op::kAllGather) return false;
    const int64_t before =
        std::accumulate(call.counts.begin(), call.counts.begin() + rank_, int64_t{0});
    return call.output != nullptr &&
           call.input == call.output + before * static_cast<int64_t>(c10::elementSize(call.dtype));
  }

  int submit_parts(const Call& call, const std::byte* input, std::byte* output, Datatype type,
                   MpiOperation& op) {
    const auto& f = mpi_.call;
    RequestHandle* request = &op.requests.back();
    if (call.op == Op::kBarrier) return f.ibarrier(comm_, request);
    if (call.op == Op::kAllToAll) {  // no rank knows whether the others' parts are equal
      op.send_counts = to_ints(op, call.counts);
      op.recv_counts = to_ints(op, call.recv_counts);
      op.send_offsets = offsets_of(op.send_counts);
      op.recv_offsets = offsets_of(op.recv_counts);
      return f.ialltoallv(input, op.send_counts.data(), op.send_offsets.data(), type, output,
                          op.recv_counts.data(), op.recv_offsets.data(), type, comm_, request);
    }
    const int64_t part = call.counts[static_cast<size_t>(rank_)];
    if (part > kMostElements) {
      throw InvalidArgument(op.text + ": MPI counts in int, so a part may have " +
                            std::to_string(kMostElements) + " elements; send fewer at once");
    }
    const int n = static_cast<int>(part);
    const void* gathered = input;
    if (is_own_part(call)) gathered = mpi_.in_place();
    if (all_equal(call.counts)) {
      switch (call.op) {
        case Op::kGather:
          return f.igather(gathered, n, type, output, n, type, call.root, comm_, request);
        case Op::kAllGather:
          return f.iallgather(gathered, n, type, output, n, type, comm_, request);
        case Op::kScatter:
          return f.iscatter(input, n, type, output, n, type, call.root, comm_, request);
        case Op::kReduceScatter:
          return f.ireduce_scatter_block(input, output, n, type, mpi_operator(mpi_, call.reduce),
                                         comm_, request);
        default:
          break;
      }
    }
    op.send_counts = to_ints(op, call.counts);
    op.send_offsets = offsets_of(op.send_counts);
    const int* counts = op.send_counts.data();
    const int* offsets = op.send_offsets.data();
    switch (call.op) {
      case Op::kGather:
        return f.igatherv(gathered, n, type, output, counts, offsets, type, call.root, comm_,
                          request);
      case Op::kAllGather:
        return f.iallgatherv(gathered, n, type, output, counts, offsets, type, comm_, request);
      case Op::kScatter:
        return f.iscatterv(input, counts, offsets, type, output, n, type, call.root, comm_,
                           request);
      case Op::kReduceScatter:
        return f.ireduce_scatter(input, output, counts, type, mpi_operator(mpi_, call.reduce),
                                 comm_, request);
      default:
        LOCKSTEP_CHECK(false, "every operation is above");
    }
  }

  Capabilities capabilities_;
  std::shared_ptr<const mpi::World> world_;
  const Library& mpi_;
  mpi::Comm comm_;
  int rank_;
  int64_t spins_;  // tests before the first yield
  std::list<std::shared_ptr<MpiOperation>> pending_;
};

}  // namespace

std::unique_ptr<Backend> make_mpi_backend(Store* store, const MpiOptions& options,
                                          Deadline deadline) {
  if (store != nullptr) store_barrier(*store, "mpi", options.size, deadline);
  const bool whole_job = options.members.empty();
  std::shared_ptr<const mpi::World> world = options.world;
  if (!world) {
    world = mpi::world_of_job(whole_job ? options.rank : options.job_rank,
                              whole_job ? options.size : options.job_size, deadline);
  }
  const mpi::Comm comm = whole_job ? mpi::duplicate(world->library(), world->comm(), deadline)
                                   : mpi::create_group(*world, options.members, deadline);
  return std::make_unique<MpiBackend>(std::move(world), comm, options);
}

}  // namespace lockstep::inline v0
