#include "lockstep/parallel/horovod/adasum.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lockstep/comm/agree.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"

namespace lockstep::inline v0 {
namespace {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

at::Tensor part_of(const at::Tensor& vector, Range range) {
  return vector.narrow(0, range.begin, range.size());
}

void swap_with(Communicator& comm, int partner, const at::Tensor& mine, const at::Tensor& theirs) {
  Work receive, send;
  if (theirs.numel() > 0) receive = comm.irecv(theirs, partner, kAdasumTag);
  if (mine.numel() > 0) send = comm.isend(mine, partner, kAdasumTag);
  receive.wait();
  send.wait();
}

template <typename T>
void add_products(const T* a, const T* b, int64_t n, double* ab_aa_bb) {
  for (int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    ab_aa_bb[0] += x * y;
    ab_aa_bb[1] += x * x;
    ab_aa_bb[2] += y * y;
  }
}

template <typename T>
void combine(const T* a, const T* b, int64_t n, const double* ab_aa_bb, T* out) {
  const double ab = ab_aa_bb[0], aa = ab_aa_bb[1], bb = ab_aa_bb[2];
  const double factor_a = aa > 0 ? 1 - ab / (2 * aa) : 1;
  const double factor_b = bb > 0 ? 1 - ab / (2 * bb) : 1;
  for (int64_t i = 0; i < n; ++i) {
    out[i] =
        static_cast<T>(factor_a * static_cast<double>(a[i]) + factor_b * static_cast<double>(b[i]));
  }
}

// One vector of T that concatenates several layers.
template <typename T>
class VectorHalving {
 public:
  VectorHalving(Communicator& comm, at::Tensor vector, std::vector<Range> layers)
      : comm_(comm), vector_(std::move(vector)), layers_(std::move(layers)) {}

  // After the level of distance d, the 2d ranks of an aligned block hold, in parts, the block's
  // sum: a rank keeps the half of its data that its partner sent it, and passes the other half on.
  // Afterwards the parts travel back the same way.
  void run() {
    std::vector<Range> held;
    Range range{0, vector_.numel()};
    for (int distance = 1; distance < comm_.size(); distance *= 2) {
      held.push_back(range);
      range = level(distance, range);
    }
    for (int distance = comm_.size() / 2; distance > 0; distance /= 2) {
      const Range whole = held.back();
      held.pop_back();
      const Range other = range.begin == whole.begin ? Range{range.end, whole.end}
                                                     : Range{whole.begin, range.begin};
      swap_with(comm_, comm_.rank() ^ distance, part_of(vector_, range), part_of(vector_, other));
      range = whole;
    }
  }

 private:
  Range level(int distance, Range range) {
    const int partner = comm_.rank() ^ distance;
    const bool first = comm_.rank() < partner;  // it holds a, and the partner b
    const int64_t middle = range.begin + range.size() / 2;
    const Range low{range.begin, middle}, high{middle, range.end};
    const Range keep = first ? low : high;
    const at::Tensor theirs = at::empty({keep.size()}, vector_.options());
    swap_with(comm_, partner, part_of(vector_, first ? high : low), theirs);

    const at::Tensor mine = part_of(vector_, keep);
    T* own = mine.mutable_data_ptr<T>();
    const T* a = first ? own : theirs.const_data_ptr<T>();
    const T* b = first ? theirs.const_data_ptr<T>() : own;
    const at::Tensor products = at::zeros({static_cast<int64_t>(layers_.size()), 3}, at::kDouble);
    auto* sums = products.mutable_data_ptr<double>();
    each_layer(keep, [&](size_t layer, int64_t at, int64_t n) {
      add_products(a + at, b + at, n, sums + 3 * layer);
    });
    add_up(products, 2 * distance);
    each_layer(keep, [&](size_t layer, int64_t at, int64_t n) {
      combine(a + at, b + at, n, sums + 3 * layer, own + at);
    });
    return keep;
  }

  // Calls it for the parts of the layers within the range.
  template <typename F>
  void each_layer(Range range, const F& f) const {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const int64_t begin = std::max(range.begin, layers_[i].begin);
      const int64_t end = std::min(range.end, layers_[i].end);
      if (begin < end) f(i, begin - range.begin, end - begin);
    }
  }

  // Adds up within the aligned block of `ranks`, in the same order on all of them.
  void add_up(const at::Tensor& values, int ranks) {
    const at::Tensor theirs = at::empty_like(values);
    for (int distance = 1; distance < ranks; distance *= 2) {
      swap_with(comm_, comm_.rank() ^ distance, values, theirs);
      values.add_(theirs);  // bitwise commutative
    }
  }

  Communicator& comm_;
  at::Tensor vector_;
  std::vector<Range> layers_;
};

void check_power_of_two(int ranks) {
  if ((ranks & (ranks - 1)) == 0) return;
  throw InvalidArgument("Adasum needs a power of two ranks, not " + std::to_string(ranks) +
                        "; take an average, or a subgroup() of so many");
}

at::ScalarType computed_in(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// No rank sends anything before all have called with the same tensors.
void agree_on(Communicator& comm, std::span<const at::Tensor> tensors, Communicator::Site site) {
  uint64_t key = tensors.size();
  for (const at::Tensor& tensor : tensors) {
    key = key * 0x9e3779b97f4a7c15ULL + static_cast<uint64_t>(tensor.numel()) * 31 +
          static_cast<uint64_t>(tensor.scalar_type());
  }
  agree(comm, "adasum of " + std::to_string(tensors.size()) + " tensors", {{"sizes", key}}, site);
}

}  // namespace

void adasum_all_reduce(Communicator& comm, std::span<const at::Tensor> tensors,
                       Communicator::Site site) {
  check_power_of_two(comm.size());
  std::map<at::ScalarType, std::vector<at::Tensor>> kinds;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !at::isFloatingType(tensor.scalar_type()) || tensor.is_sparse())
      throw InvalidArgument("Adasum is for dense floating-point tensors");
    kinds[computed_in(tensor.scalar_type())].push_back(tensor);
  }
  if (comm.size() == 1) return;
  const at::NoGradGuard no_grad;
  agree_on(comm, tensors, site);
  for (const auto& [kind, members] : kinds) {
    // Tensors of a device are copied to the host as one, and back as one.
    const at::Device device = members.front().device();
    const bool together = std::all_of(members.begin(), members.end(), [&](const at::Tensor& one) {
      return one.device() == device;
    });
    std::vector<at::Tensor> flat;
    std::vector<Range> layers;
    int64_t at = 0;
    for (const at::Tensor& tensor : members) {
      flat.push_back(tensor.detach().reshape({-1}).to(together ? device : at::kCPU, kind));
      layers.push_back({at, at + tensor.numel()});
      at += tensor.numel();
    }
    const at::Tensor vector = at::cat(flat).cpu();
    if (kind == at::kDouble)
      VectorHalving<double>(comm, vector, layers).run();
    else
      VectorHalving<float>(comm, vector, layers).run();
    const at::Tensor sums = together ? device::copy_to(vector, device) : vector;
    for (size_t i = 0; i < members.size(); ++i)
      members[i].copy_(part_of(sums, layers[i]).view(members[i].sizes()));
  }
}

AdasumStep::AdasumStep(Communicator comm, std::vector<at::Tensor> parameters)
    : comm_(std::move(comm)), parameters_(std::move(parameters)) {
  check_power_of_two(comm_.size());
  for (const at::Tensor& parameter : parameters_) starts_.push_back(at::empty_like(parameter));
}

void AdasumStep::before() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) starts_[i].copy_(parameters_[i]);
}

void AdasumStep::after() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> steps;
  for (size_t i = 0; i < parameters_.size(); ++i) steps.push_back(parameters_[i].sub(starts_[i]));
  adasum_all_reduce(comm_, steps);
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].copy_(starts_[i].add_(steps[i]));
}

}  // namespace lockstep::inline v0
