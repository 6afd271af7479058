#include "lockstep/bench/contender.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "lockstep/comm/engines/mpi/mpi_library.h"
#include "lockstep/comm/engines/mpi/mpi_process.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::bench {
namespace {

constexpr int kPatterns = 3;

template <typename T>
void fill_as(at::Tensor& to, const void* pattern) {
  T value;
  std::memcpy(&value, pattern, sizeof value);
  std::fill_n(static_cast<T*>(to.mutable_data_ptr()), to.numel(), value);
}

// Sets every element of `to` to the one at `pattern`. It bypasses the dispatcher, whose microsecond
// would show beside a small operation.
void fill(at::Tensor& to, const void* pattern) {
  switch (to.element_size()) {
    case 1:
      return fill_as<uint8_t>(to, pattern);
    case 2:
      return fill_as<uint16_t>(to, pattern);
    case 4:
      return fill_as<uint32_t>(to, pattern);
    default:
      return fill_as<uint64_t>(to, pattern);
  }
}

class CommContender final : public Contender {
 public:
  CommContender(const Communicator& comm, bool symmetric, const std::string& library)
      : Contender(comm.capabilities().backend, symmetric, comm.rank(), comm.size()), comm_(comm) {
    library_ = library;
  }

  std::string obstacle(const BenchCase& c) const override {
    if (c.op == Op::kSend && size_ < 2) return "send needs two ranks";
    if (comm_.support(c.op, c.dtype) == Support::kUnsupported)
      return "backend " + name_ + " has no " + to_string(c.op) + " of " + dtype_name(c.dtype);
    return "";
  }

  void run() override {
    switch (case_.op) {
      case Op::kAllReduce:
        return comm_.all_reduce(output_);
      case Op::kBroadcast:
        return comm_.broadcast(output_, 0);
      case Op::kReduce:
        return comm_.reduce(input_, 0);
      case Op::kAllGather:
        return comm_.iall_gather(output_, input_).wait();
      case Op::kReduceScatter:
        return comm_.ireduce_scatter(output_, input_).wait();
      case Op::kAllToAll:
        return comm_.iall_to_all(output_, input_).wait();
      case Op::kGather:
        return comm_.igather(output_, input_, 0).wait();
      case Op::kScatter:
        return comm_.scatter(output_, input_, 0);
      case Op::kBarrier:
        return comm_.barrier();
      default:
        break;
    }
    if (rank_ == 0) {
      comm_.send(output_, 1);
      comm_.recv(output_, 1);
    } else if (rank_ == 1) {
      comm_.recv(output_, 0);
      comm_.send(output_, 0);
    }
  }

 private:
  at::Tensor make_buffer(int64_t elements, at::ScalarType dtype) override {
    if (symmetric_) return make_symmetric_buffer(elements, dtype);
    return Contender::make_buffer(elements, dtype);
  }

  at::Tensor make_symmetric_buffer(int64_t elements, at::ScalarType dtype) {
    return comm_.symmetric_empty({elements}, dtype);
  }

  Communicator comm_;
};

class RawMpiContender final : public Contender {
 public:
  RawMpiContender(int rank, int size)
      : Contender("mpi-raw", false, rank, size), mpi_(mpi::world_of_job(rank, size)->library()) {
    library_ = mpi_.name();
  }

  std::string obstacle(const BenchCase& c) const override {
    if (c.op == Op::kSend && size_ < 2) return "send needs two ranks";
    if (is_reduction(c.op) && accumulation_type(c.dtype) != c.dtype)
      return std::string("MPI cannot add ") + dtype_name(c.dtype);
    return "";
  }

  void run() override {
    const auto& f = mpi_.call;
    const mpi::Comm world = mpi_.handle.world;
    const mpi::Operator sum = mpi_.handle.sum;
    const mpi::Datatype type = type_of(case_.dtype);
    const int part = static_cast<int>(case_.part());
    void* in = input_.defined() ? input_.mutable_data_ptr() : nullptr;
    void* out = output_.defined() ? output_.mutable_data_ptr() : nullptr;
    int code = mpi::kSuccess;
    mpi::Status status;
    switch (case_.op) {
      case Op::kAllReduce:
        code = f.allreduce(mpi_.in_place(), out, part, type, sum, world);
        break;
      case Op::kBroadcast:
        code = f.bcast(out, part, type, 0, world);
        break;
      case Op::kReduce:
        code = f.reduce(rank_ == 0 ? mpi_.in_place() : in, out, part, type, sum, 0, world);
        break;
      case Op::kAllGather:
        code = f.allgather(in, part, type, out, part, type, world);
        break;
      case Op::kReduceScatter:
        code = f.reduce_scatter_block(in, out, part, type, sum, world);
        break;
      case Op::kAllToAll:
        code = f.alltoall(in, part, type, out, part, type, world);
        break;
      case Op::kGather:
        code = f.gather(in, part, type, out, part, type, 0, world);
        break;
      case Op::kScatter:
        code = f.scatter(in, part, type, out, part, type, 0, world);
        break;
      case Op::kBarrier:
        code = f.barrier(world);
        break;
      default:
        if (rank_ == 0) {
          f.send(out, part, type, 1, 0, world);
          code = f.recv(out, part, type, 1, 0, world, &status);
        } else if (rank_ == 1) {
          code = f.recv(out, part, type, 0, 0, world, &status);
          f.send(out, part, type, 0, 0, world);
        }
    }
    if (code != mpi::kSuccess) throw Error("mpi-raw: " + mpi_.error_text(code));
  }

 private:
  mpi::Datatype type_of(at::ScalarType dtype) const {
    switch (dtype) {
      case at::kFloat:
        return mpi_.handle.float32;
      case at::kDouble:
        return mpi_.handle.float64;
      case at::kInt:
        return mpi_.handle.int32;
      case at::kLong:
        return mpi_.handle.int64;
      case at::kShort:
        return mpi_.handle.int16;
      case at::kHalf:
      case at::kBFloat16:
        return mpi_.handle.uint16;
      case at::kChar:
        return mpi_.handle.int8;
      default:
        return mpi_.handle.uint8;
    }
  }

  const mpi::Library& mpi_;
};

}  // namespace

Contender::Contender(std::string name, bool symmetric, int rank, int size)
    : name_(std::move(name)), symmetric_(symmetric), rank_(rank), size_(size) {}

at::Tensor Contender::make_buffer(int64_t elements, at::ScalarType dtype) {
  return at::empty({elements}, dtype);
}

double Contender::value_of(int rank, int64_t turn) const {
  return 1 + static_cast<double>((rank + turn) % kPatterns);
}

// Whether this rank sends values of its own.
bool Contender::gives_input() const {
  switch (case_.op) {
    case Op::kBarrier:
      return false;
    case Op::kBroadcast:
    case Op::kScatter:
    case Op::kSend:
      return rank_ == 0;
    default:
      return true;
  }
}

void Contender::prepare(const BenchCase& c) {
  case_ = c;
  release();
  patterns_ = at::tensor({1.0, 2.0, 3.0}).to(c.dtype);
  const bool is_root = rank_ == 0;
  const auto buffer = [&](bool whole) {
    return make_buffer(whole ? c.whole() : c.part(), c.dtype);
  };
  if (!c.in_parts()) {
    if (c.op != Op::kBarrier) input_ = output_ = buffer(true);  // in place
  } else {
    const bool gathers = c.op == Op::kGather || c.op == Op::kAllGather;
    const bool scatters = c.op == Op::kScatter || c.op == Op::kReduceScatter;
    if (c.op != Op::kScatter || is_root) input_ = buffer(!gathers);
    if (c.op != Op::kGather || is_root) output_ = buffer(!scatters);
  }
  for (at::Tensor* tensor : {&input_, &output_}) {
    if (tensor->defined())
      tensor->zero_();  // touches the pages, and leaves no result that is right by chance
  }
}

void Contender::release() {
  input_ = output_ = at::Tensor();
}

void Contender::touch(int64_t turn) {
  if (!gives_input()) return;
  const auto index = static_cast<int64_t>(value_of(rank_, turn)) - 1;
  fill(input_, static_cast<const std::byte*>(patterns_.const_data_ptr()) +
                   index * static_cast<int64_t>(patterns_.element_size()));
}

void Contender::verify(int64_t turn) const {
  if (!output_.defined() || case_.op == Op::kBarrier) return;
  if (case_.op == Op::kReduce && rank_ != 0) return;
  if (case_.op == Op::kSend && rank_ > 1) return;
  double sum = 0;
  for (int r = 0; r < size_; ++r) sum += value_of(r, turn);
  const bool by_rank =
      case_.op == Op::kGather || case_.op == Op::kAllGather || case_.op == Op::kAllToAll;
  const int64_t parts = by_rank ? size_ : 1;
  const int64_t length = output_.numel() / parts;
  for (int64_t p = 0; p < parts; ++p) {
    const double expected =
        is_reduction(case_.op) ? sum : value_of(by_rank ? static_cast<int>(p) : 0, turn);
    for (const int64_t at : {int64_t{0}, length / 2, length - 1}) {
      const double got = output_[p * length + at].item<double>();
      if (got == expected) continue;
      throw Error("backend " + name_ + " is wrong: " + to_string(case_.op) + " " +
                  dtype_name(case_.dtype) + " of " + std::to_string(case_.whole_bytes()) +
                  " bytes left " + std::to_string(got) + " on rank " + std::to_string(rank_) +
                  ", expected " + std::to_string(expected));
    }
  }
}

std::unique_ptr<Contender> make_comm_contender(const Communicator& comm, bool symmetric,
                                               const std::string& library) {
  return std::make_unique<CommContender>(comm, symmetric, library);
}

std::unique_ptr<Contender> make_raw_mpi_contender(int rank, int size) {
  return std::make_unique<RawMpiContender>(rank, size);
}

}  // namespace lockstep::inline v0::bench
