#include "lockstep/parallel/ddp/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"

namespace lockstep::inline v0 {
namespace {

// Gram-Schmidt, column by column; a column that vanishes against the others becomes zero.
void make_orthonormal(const at::Tensor& p) {
  for (int64_t c = 0; c < p.size(1); ++c) {
    const at::Tensor column = p.select(1, c);
    const at::Tensor before = column.norm();
    // Two passes are enough (Giraud et al., "On the round-off error analysis of the Gram-Schmidt
    // algorithm with reorthogonalization", 2005).
    for (int pass = 0; pass < 2 && c > 0; ++pass) {
      const at::Tensor others = p.narrow(1, 0, c);
      column.sub_(others.mv(others.t().mv(column)));
    }
    const at::Tensor norm = column.norm();
    if (!p.is_cpu())  // computed without waiting on the host
      column.copy_(at::where(norm.gt(before * 1e-6), column / norm, 0.0));
    else if (norm.item<double>() > before.item<double>() * 1e-6)
      column.div_(norm.item<double>());
    else
      column.zero_();
  }
}

// A gradient of a bucket that is worth compressing.
struct Factor {
  at::Tensor gradient;  // [n, m], in the bucket's memory
  at::Tensor error;     // [n, m]
  at::Tensor p;         // [n, rank], in the memory of the bucket's P and rest
  at::Tensor q;         // [m, rank], in the memory of its Q
};

struct Rest {
  at::Tensor gradient;  // [k], in the bucket's memory
  at::Tensor sent;      // [k]
};

struct Compressed {
  std::vector<Factor> factors;
  std::vector<Rest> rest;
  at::Tensor first;   // all P, then the rest
  at::Tensor second;  // all Q
  int64_t step = 0;
};

class PowerSgd final : public CommHook {
 public:
  explicit PowerSgd(PowerSgdOptions options) : options_(options) {}

  void prepare(Communicator& comm, std::span<const GradBucket> buckets) override {
    buckets_.clear();
    for (const GradBucket& bucket : buckets) buckets_.push_back(plan(comm, bucket));
  }

  Work start(Communicator& comm, const GradBucket& bucket, const CallNote& note) override {
    Compressed& mine = buckets_[bucket.index];
    if (!compresses(mine)) return CommHook::start(comm, bucket, note);
    if (!options_.warm_start) draw(mine, bucket.index);
    for (Factor& f : mine.factors) {
      if (options_.error_feedback) f.gradient.add_(f.error);
      at::mm_out(f.p, f.gradient, f.q);
    }
    for (const Rest& r : mine.rest) r.sent.copy_(r.gradient);
    return comm.iall_reduce(mine.first, ReduceOp::kAvg, note);
  }

  void finish(Communicator& comm, const GradBucket& bucket, const CallNote& note) override {
    Compressed& mine = buckets_[bucket.index];
    if (compresses(mine)) decompress(comm, mine, note);
    ++mine.step;
  }

 private:
  bool compresses(const Compressed& mine) const {
    return !mine.factors.empty() && mine.step >= options_.start_step;
  }

  Compressed plan(Communicator& comm, const GradBucket& bucket) const {
    const at::ScalarType dtype = bucket.flat.scalar_type();
    const bool possible = dtype == at::kFloat || dtype == at::kDouble;
    Compressed made;
    int64_t first = 0, second = 0;
    for (const at::Tensor& gradient : bucket.gradients) {
      const int64_t n = gradient.dim() > 1 ? gradient.size(0) : 0;
      const int64_t m = n > 0 ? gradient.numel() / n : 0;
      const auto sent = static_cast<double>((n + m) * options_.rank);
      if (possible && n > 0 && m > 0 &&
          static_cast<double>(n * m) >= options_.min_compression * sent) {
        made.factors.push_back({gradient.view({n, m}), {}, {}, {}});
        first += n * options_.rank;
        second += m * options_.rank;
      } else {
        made.rest.push_back({gradient.view({-1}), {}});
        first += gradient.numel();
      }
    }
    if (made.factors.empty()) return made;
    const auto make = [&](int64_t numel) {
      if (bucket.flat.device() != comm.capabilities().device)
        return at::empty({numel}, bucket.flat.options());
      return comm.symmetric_empty({numel}, dtype);
    };
    made.first = make(first);
    made.second = make(second);
    int64_t at = 0, at_q = 0;
    for (Factor& f : made.factors) {
      const int64_t n = f.gradient.size(0), m = f.gradient.size(1);
      f.p = made.first.narrow(0, at, n * options_.rank).view({n, options_.rank});
      f.q = made.second.narrow(0, at_q, m * options_.rank).view({m, options_.rank});
      at += n * options_.rank;
      at_q += m * options_.rank;
      if (options_.error_feedback) f.error = at::zeros({n, m}, made.first.options());
    }
    for (Rest& r : made.rest) {
      r.sent = made.first.narrow(0, at, r.gradient.numel());
      at += r.gradient.numel();
    }
    draw(made, bucket.index);
    return made;
  }

  // Draws a new Q, which is the same on all ranks.
  void draw(Compressed& mine, size_t bucket) const {
    const uint64_t seed = options_.seed + 0x9e3779b97f4a7c15u * (bucket + 1) +
                          static_cast<uint64_t>(mine.step) * 0xbf58476d1ce4e5b9u;
    const at::Generator generator = at::detail::createCPUGenerator(seed);
    if (mine.second.is_cpu()) {
      mine.second.normal_(0, 1, generator);
      return;
    }
    const at::Tensor drawn =
        device::empty_pinned(mine.second.sizes(), mine.second.scalar_type(), mine.second.device());
    mine.second.copy_(drawn.normal_(0, 1, generator), /*non_blocking=*/true);
  }

  void decompress(Communicator& comm, Compressed& mine, const CallNote& note) {
    for (Factor& f : mine.factors) {
      make_orthonormal(f.p);
      at::mm_out(f.q, f.gradient.t(), f.p);
    }
    comm.iall_reduce(mine.second, ReduceOp::kAvg, note).wait();
    for (Factor& f : mine.factors) {
      if (options_.error_feedback) f.error.copy_(f.gradient);
      at::mm_out(f.gradient, f.p, f.q.t());
      if (options_.error_feedback) f.error.sub_(f.gradient);
    }
    for (const Rest& r : mine.rest) r.gradient.copy_(r.sent);
  }

  PowerSgdOptions options_;
  std::vector<Compressed> buckets_;
};

}  // namespace

std::unique_ptr<CommHook> make_power_sgd_hook(PowerSgdOptions options) {
  if (options.rank < 1 || options.start_step < 0 || !(options.min_compression > 0)) {
    throw InvalidArgument(
        "PowerSGD takes rank 1 or more, start_step 0 or more and "
        "min_compression above 0");
  }
  return std::make_unique<PowerSgd>(options);
}

}  // namespace lockstep::inline v0
