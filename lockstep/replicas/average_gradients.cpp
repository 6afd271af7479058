#include "lockstep/replicas/average_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <deque>
#include <string>
#include <vector>

#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/comm/work.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/distinct_tensors.h"
#include "lockstep/replicas/gradient_plan.h"
#include "lockstep/replicas/sparse_sum.h"

namespace lockstep::inline v0 {
namespace {

// Buckets that are under way while the next is packed. More of them take memory and hide nothing.
constexpr size_t kUnderWay = 4;

// Which ranks have which gradients, as one exchange tells it.
struct Present {
  std::vector<bool> dense;   // on some rank
  std::vector<bool> sparse;  // on some rank
};

class Flags {
 public:
  explicit Flags(size_t words) : words_(at::zeros({static_cast<int64_t>(words)}, at::kLong)) {}
  void set(size_t bit) { word(bit / 64) |= uint64_t{1} << (bit % 64); }
  bool get(size_t bit) { return (word(bit / 64) >> (bit % 64) & 1) != 0; }
  uint64_t& word(size_t index) { return static_cast<uint64_t*>(words_.mutable_data_ptr())[index]; }
  void reduce(Communicator& comm, Communicator::Site site) {
    comm.all_reduce(words_, ReduceOp::kBitOr, site);
  }

 private:
  at::Tensor words_;
};

// The first call of all ranks has one size, whatever their parameters are: two words that show
// whether the shapes are the same, then two bits for each parameter, if there is room. The OR of a
// word and that of its complement have no common bit where the word is the same everywhere.
Present exchange(const std::vector<at::Tensor>& tensors, const NamedTensors& named,
                 Communicator& comm, Communicator::Site site) {
  constexpr size_t kWords = 32, kHead = 2;
  const size_t bits = 2 * tensors.size();
  const bool fits = bits <= (kWords - kHead) * 64;
  Flags first(kWords);
  Flags second(fits ? 0 : (bits + 63) / 64);
  Flags& flags = fits ? first : second;
  const size_t begin = fits ? kHead * 64 : 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& gradient = tensors[i].grad();
    if (gradient.defined()) flags.set(begin + 2 * i + (gradient.is_sparse() ? 1 : 0));
  }
  const uint64_t own = internal::shapes_word(tensors);
  first.word(0) = own;
  first.word(1) = ~own;
  first.reduce(comm, site);
  if ((first.word(0) & first.word(1)) != 0) {
    check_same_on_all_ranks(comm, named);
    throw Mismatch(
        "average_gradients: the ranks' parameters are the same by name, but some have a tied "
        "parameter that others do not tie; give all ranks the same model");
  }
  if (tensors.empty()) {
    throw InvalidArgument(
        "average_gradients: there are no parameters; register_parameter() makes a module's known, "
        "and torch.jit.freeze() has turned those of a TorchScript module into constants");
  }
  if (!fits) second.reduce(comm, site);
  Present present{std::vector<bool>(tensors.size()), std::vector<bool>(tensors.size())};
  for (size_t i = 0; i < tensors.size(); ++i) {
    present.dense[i] = flags.get(begin + 2 * i);
    present.sparse[i] = flags.get(begin + 2 * i + 1);
  }
  return present;
}

class Averager {
 public:
  Averager(Communicator& comm, AverageOptions options, Communicator::Site site)
      : comm_(comm), options_(options), site_(site) {}

  // `parameters` have dense gradients of their own dtype or none.
  void average_dense(std::vector<at::Tensor> parameters) {
    std::vector<flat::TensorSpec> specs;
    for (at::Tensor& parameter : parameters) {
      specs.push_back({parameter.numel(), parameter.scalar_type(), parameter.device()});
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) gradient = at::zeros_like(parameter);
    }
    for (const flat::Bucket& bucket :
         internal::plan_gradients(specs, options_.bucket_bytes, kCoalescedBytes)) {
      // One after another where each has its own all-reduce: that is the tutorial's form.
      const size_t most = options_.bucket_bytes == 0 ? 0 : kUnderWay - 1;
      while (under_way_.size() > most) finish_oldest();
      start(bucket, parameters);
    }
    while (!under_way_.empty()) finish_oldest();
  }

  void average_sparse(const at::Tensor& parameter) {
    at::Tensor sum = internal::sum_sparse(comm_, parameter.grad(), parameter);
    sum.div_(static_cast<double>(comm_.size()));
    parameter.mutable_grad() = std::move(sum);
  }

 private:
  struct Flight {
    at::Tensor flat;
    std::vector<at::Tensor> parts;      // of `flat`, in the gradients' shapes
    std::vector<at::Tensor> gradients;  // to which they are copied; none where they lie there
    Work work;
  };

  void start(const flat::Bucket& bucket, std::vector<at::Tensor>& parameters) {
    Flight flight;
    const at::Tensor only =
        bucket.slots.size() == 1 ? parameters[bucket.slots[0].tensor].grad() : at::Tensor();
    if (only.defined() && only.is_contiguous() && only.scalar_type() == bucket.dtype) {
      flight.flat = only.view({-1});
    } else {
      flight.flat = memory(bucket);
      // A gradient alone is as long here as on a rank where it is reduced in place.
      if (only.defined()) flight.flat = flight.flat.narrow(0, 0, only.numel());
      for (const flat::Bucket::Slot& slot : bucket.slots) {
        const at::Tensor& gradient = parameters[slot.tensor].grad();
        const at::Tensor part =
            flight.flat.narrow(0, slot.offset, gradient.numel()).view(gradient.sizes());
        part.copy_(gradient);
        flight.parts.push_back(part);
        flight.gradients.push_back(gradient);
      }
    }
    reduce(flight);
    under_way_.push_back(std::move(flight));
  }

  void reduce(Flight& flight) {
    if (options_.algorithm != algorithms::AllReduce::kEngine) {
      algorithms::all_reduce(comm_, flight.flat, options_.algorithm, ReduceOp::kSum, site_);
      flight.flat.div_(static_cast<double>(comm_.size()));
      return;
    }
    flight.work = comm_.iall_reduce(flight.flat, ReduceOp::kAvg, site_);
    comm_.progress();
  }

  void finish_oldest() {
    Flight flight = std::move(under_way_.front());
    under_way_.pop_front();
    flight.work.wait();
    for (size_t i = 0; i < flight.parts.size(); ++i) {
      flight.gradients[i].copy_(flight.parts[i]);
      if (i % 16 == 15) comm_.progress();
    }
    if (!flight.parts.empty()) free_.push_back(std::move(flight.flat));
  }

  // A bucket's memory, which may be that of a former one. What lies between gradients is reduced
  // with them, so it must be numbers.
  at::Tensor memory(const flat::Bucket& bucket) {
    for (auto one = free_.begin(); one != free_.end(); ++one) {
      if (one->scalar_type() != bucket.dtype || one->device() != bucket.device ||
          one->numel() < bucket.numel)
        continue;
      const at::Tensor flat = one->narrow(0, 0, bucket.numel);
      free_.erase(one);
      return flat;
    }
    return at::zeros({bucket.numel}, at::TensorOptions(bucket.dtype).device(bucket.device));
  }

  Communicator& comm_;
  AverageOptions options_;
  Communicator::Site site_;
  std::deque<Flight> under_way_;
  std::vector<at::Tensor> free_;
};

}  // namespace

void average_gradients(const NamedTensors& parameters, Communicator& comm, AverageOptions options,
                       Communicator::Site site) {
  if (options.bucket_bytes < 0)
    throw InvalidArgument("average_gradients: bucket_bytes is " +
                          std::to_string(options.bucket_bytes) + "; give 0 or more");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : distinct_tensors(parameters)) tensors.push_back(tensor);
  const Present present = exchange(tensors, parameters, comm, site);

  Averager averager(comm, options, site);
  std::vector<at::Tensor> dense;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!present.dense[i]) continue;
    at::Tensor& gradient = tensors[i].mutable_grad();
    if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
    dense.push_back(tensors[i]);
  }
  averager.average_dense(std::move(dense));
  for (size_t i = 0; i < tensors.size(); ++i)
    if (present.sparse[i] && !present.dense[i]) averager.average_sparse(tensors[i]);
}

}  // namespace lockstep::inline v0
