#include "lockstep/comm/functional.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/internal/communicator_checks.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A collective is a linear map from all ranks' inputs to all ranks' outputs. `run` computes this
// rank's part, without autograd; `adjoint` makes the transposed map, for an input like `run`'s.
struct LinearMap {
  std::function<at::Tensor(const at::Tensor& input)> run;
  std::function<std::shared_ptr<const LinearMap>(const at::Tensor& input)> adjoint;
};
using MapPtr = std::shared_ptr<const LinearMap>;

MapPtr make_map(std::function<at::Tensor(const at::Tensor&)> run,
                std::function<MapPtr(const at::Tensor&)> adjoint) {
  return std::make_shared<const LinearMap>(LinearMap{std::move(run), std::move(adjoint)});
}

// The values of forward that backward needs.
struct SavedMap final : torch::CustomClassHolder {
  SavedMap(MapPtr adjoint, std::vector<int64_t> shape)
      : adjoint(std::move(adjoint)), shape(std::move(shape)) {}
  MapPtr adjoint;
  std::vector<int64_t> shape;  // the input's shape
};

at::Tensor apply_map(const MapPtr& map, const at::Tensor& input);

class LinearFunction final : public torch::autograd::Function<LinearFunction> {
 public:
  // `anchor` requires grad, and therefore the result does, on every rank.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& /*anchor*/, const MapPtr& map) {
    context->saved_data["map"] = c10::IValue::make_capsule(
        c10::make_intrusive<SavedMap>(map->adjoint(input), input.sizes().vec()));
    return map->run(input);
  }

  // Undefined gradients arrive as zeros: this rank takes part even if it has none.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["map"].toCapsule();
    const auto& saved = static_cast<const SavedMap&>(*capsule);
    return {apply_map(saved.adjoint, gradients[0]).view(saved.shape), at::Tensor(), at::Tensor()};
  }
};

at::Tensor anchor_like(const at::Tensor& tensor) {
  return at::empty({0}, tensor.options()).set_requires_grad(true);
}

at::Tensor apply_map(const MapPtr& map, const at::Tensor& input) {
  if (!at::GradMode::is_enabled() || !at::isFloatingType(input.scalar_type())) {
    const at::NoGradGuard no_grad;
    return map->run(input);
  }
  return LinearFunction::apply(input, anchor_like(input), map);
}

at::Tensor fresh_copy(const at::Tensor& tensor) {
  return tensor.detach().clone(at::MemoryFormat::Contiguous);
}

MapPtr scaled(const MapPtr& map, double factor) {
  return make_map([map, factor](const at::Tensor& x) { return map->run(x).mul_(factor); },
                  [map, factor](const at::Tensor& x) { return scaled(map->adjoint(x), factor); });
}

// The map with `op` in place of a sum.
MapPtr reduced_by(const char* what, ReduceOp op, int size, MapPtr sum) {
  if (op == ReduceOp::kSum) return sum;
  if (op == ReduceOp::kAvg) return scaled(std::move(sum), 1.0 / size);
  throw InvalidArgument(std::string(what) + ": " + to_string(op) +
                        " has no gradient here; use sum or avg, or the Communicator's own form");
}

MapPtr all_reduce_map(Communicator comm, ReduceOp op, Site site) {
  return make_map(
      [comm, op, site](const at::Tensor& x) mutable {
        at::Tensor y = fresh_copy(x);
        comm.all_reduce(y, op, site);
        return y;
      },
      [comm, op, site](const at::Tensor&) { return all_reduce_map(comm, op, site); });
}

MapPtr reduce_scatter_map(Communicator comm, Site site);

MapPtr all_gather_map(Communicator comm, Site site) {
  return make_map([comm, site](const at::Tensor& x) mutable { return comm.all_gather(x, site); },
                  [comm, site](const at::Tensor&) { return reduce_scatter_map(comm, site); });
}

MapPtr reduce_scatter_map(Communicator comm, Site site) {
  return make_map(
      [comm, site](const at::Tensor& x) mutable {
        return comm.reduce_scatter(x, ReduceOp::kSum, site);
      },
      [comm, site](const at::Tensor&) { return all_gather_map(comm, site); });
}

using Counts = std::vector<int64_t>;

at::Tensor empty_rows(const at::Tensor& like, int64_t rows) {
  return at::empty(checks::Rows(like).shape(rows), like.options().requires_grad(false));
}

MapPtr reduce_scatterv_map(Communicator comm, Counts counts, Site site);

MapPtr all_gatherv_map(Communicator comm, Counts counts, Site site) {
  return make_map(
      [comm, counts, site](const at::Tensor& x) mutable {
        at::Tensor y = empty_rows(x, checks::total(counts));
        comm.iall_gatherv(y, x, counts, site).wait();
        return y;
      },
      [comm, counts, site](const at::Tensor&) { return reduce_scatterv_map(comm, counts, site); });
}

MapPtr reduce_scatterv_map(Communicator comm, Counts counts, Site site) {
  return make_map(
      [comm, counts, site](const at::Tensor& x) mutable {
        return comm.reduce_scatterv(x, counts, ReduceOp::kSum, site);
      },
      [comm, counts, site](const at::Tensor&) { return all_gatherv_map(comm, counts, site); });
}

MapPtr reduce_map(Communicator comm, int root, Site site);

MapPtr broadcast_map(Communicator comm, int root, Site site) {
  return make_map(
      [comm, root, site](const at::Tensor& x) mutable {
        at::Tensor y =
            comm.rank() == root ? fresh_copy(x) : at::empty_like(x, at::MemoryFormat::Contiguous);
        comm.broadcast(y, root, site);
        return y;
      },
      [comm, root, site](const at::Tensor&) { return reduce_map(comm, root, site); });
}

MapPtr reduce_map(Communicator comm, int root, Site site) {
  return make_map(
      [comm, root, site](const at::Tensor& x) mutable {
        at::Tensor y = fresh_copy(x);
        comm.reduce(y, root, ReduceOp::kSum, site);
        return comm.rank() == root ? y : y.zero_();
      },
      [comm, root, site](const at::Tensor&) { return broadcast_map(comm, root, site); });
}

MapPtr scatter_map(Communicator comm, const std::vector<int64_t>& shape, int root, Site site);

MapPtr gather_map(Communicator comm, int root, Site site) {
  return make_map(
      [comm, root, site](const at::Tensor& x) mutable {
        at::Tensor all = comm.gather(x, root, site);
        if (all.defined()) return all;
        const checks::Rows part(x);
        return at::zeros(part.shape(part.rows * comm.size()), x.options().requires_grad(false));
      },
      [comm, root, site](const at::Tensor& x) {
        return scatter_map(comm, x.sizes().vec(), root, site);
      });
}

// Every rank's input has the whole shape; only the root's values count.
MapPtr scatter_map(Communicator comm, const std::vector<int64_t>& shape, int root, Site site) {
  return make_map(
      [comm, shape, root, site](const at::Tensor& x) mutable {
        at::Tensor y = at::empty(shape, x.options().requires_grad(false));
        comm.scatter(y, comm.rank() == root ? x : at::Tensor(), root, site);
        return y;
      },
      [comm, root, site](const at::Tensor& x) -> MapPtr {
        MapPtr gather = gather_map(comm, root, site);
        // A rank that gave no input needs no gradient for it.
        if (x.numel() != 0) return gather;
        return make_map([gather](const at::Tensor& g) { return gather->run(g).slice(0, 0, 0); },
                        [gather](const at::Tensor& g) { return gather->adjoint(g); });
      });
}

MapPtr all_to_all_map(Communicator comm, Site site) {
  return make_map([comm, site](const at::Tensor& x) mutable { return comm.all_to_all(x, site); },
                  [comm, site](const at::Tensor&) { return all_to_all_map(comm, site); });
}

MapPtr all_to_allv_map(Communicator comm, Counts out, Counts in, Site site) {
  return make_map(
      [comm, out, in, site](const at::Tensor& x) mutable {
        at::Tensor y = empty_rows(x, checks::total(in));
        comm.iall_to_allv(y, x, out, in, site).wait();
        return y;
      },
      [comm, out, in, site](const at::Tensor&) { return all_to_allv_map(comm, in, out, site); });
}

MapPtr recv_map(Communicator comm, const std::vector<int64_t>& shape, int src, int tag, Site site);

// From a tensor to nothing: this rank's result is an empty tensor.
MapPtr send_map(Communicator comm, int dst, int tag, Site site) {
  return make_map(
      [comm, dst, tag, site](const at::Tensor& x) mutable {
        comm.send(x, dst, tag, site);
        return at::empty({0}, x.options().requires_grad(false));
      },
      [comm, dst, tag, site](const at::Tensor& x) {
        return recv_map(comm, x.sizes().vec(), dst, tag, site);
      });
}

// Maps no input to a tensor.
MapPtr recv_map(Communicator comm, const std::vector<int64_t>& shape, int src, int tag, Site site) {
  return make_map(
      [comm, shape, src, tag, site](const at::Tensor& x) mutable {
        at::Tensor y = at::empty(shape, x.options().requires_grad(false));
        comm.recv(y, src, tag, site);
        return y;
      },
      [comm, src, tag, site](const at::Tensor&) { return send_map(comm, src, tag, site); });
}

void check_input(Op op, const at::Tensor& tensor, const char* name) {
  checks::check_tensor(op, tensor, name);
}

// Multiplies by `share`, a constant of this rank, before or after a sum over all ranks.
MapPtr shared_sum_map(Communicator comm, const at::Tensor& share, bool before, Site site) {
  return make_map(
      [comm, share, before, site](const at::Tensor& x) mutable {
        at::Tensor y = before ? x.mul(share) : fresh_copy(x);
        comm.all_reduce(y, ReduceOp::kSum, site);
        return before ? y : y.mul_(share);
      },
      [comm, share, before, site](const at::Tensor&) {
        return shared_sum_map(comm, share, !before, site);
      });
}

// max and min are not linear, but their derivative is: the extremum moves with the elements that
// have it.
at::Tensor all_reduce_extremum(const Communicator& comm, const at::Tensor& input, ReduceOp op,
                               Site site) {
  at::Tensor extremum, share;
  {
    const at::NoGradGuard no_grad;
    extremum = all_reduce_map(comm, op, site)->run(input);
    if (!at::isFloatingType(input.scalar_type())) return extremum;
  }
  if (!at::GradMode::is_enabled()) return extremum;
  {
    const at::NoGradGuard no_grad;
    // Computes at least in float32, because a half counts only to 2048.
    const at::Tensor mine = input.detach().eq(extremum).to(accumulation_type(input.scalar_type()));
    const at::Tensor holders = all_reduce_map(comm, ReduceOp::kSum, site)->run(mine);
    // NaN equals nothing, so no rank holds the extremum then, and none gets a gradient.
    share = mine.div(holders.clamp_min(1)).to(input.scalar_type());
  }
  return apply_map(make_map([extremum](const at::Tensor&) { return extremum.clone(); },
                            [comm, share, site](const at::Tensor&) {
                              return shared_sum_map(comm, share, false, site);
                            }),
                   input);
}

}  // namespace

at::Tensor all_reduce(const Communicator& comm, const at::Tensor& input, ReduceOp op, Site site) {
  check_input(Op::kAllReduce, input, "input");
  if (op == ReduceOp::kMax || op == ReduceOp::kMin)
    return all_reduce_extremum(comm, input, op, site);
  const bool differentiable = at::GradMode::is_enabled() && at::isFloatingType(input.scalar_type());
  if (differentiable && op != ReduceOp::kSum && op != ReduceOp::kAvg) {
    throw InvalidArgument(std::string("functional::all_reduce: ") + to_string(op) +
                          " has no gradient here; use sum, avg, max or min, or detach() under a "
                          "NoGradGuard");
  }
  return apply_map(all_reduce_map(comm, op, site), input);
}

at::Tensor all_gather(const Communicator& comm, const at::Tensor& input, Site site) {
  check_input(Op::kAllGather, input, "input");
  return apply_map(all_gather_map(comm, site), input);
}

at::Tensor all_gatherv(const Communicator& comm, const at::Tensor& input, Site site) {
  check_input(Op::kAllGather, input, "input");
  Communicator handle = comm;
  const at::Tensor rows =
      handle.all_gather(at::tensor({checks::Rows(input).rows}, at::kLong), site);
  const auto* data = rows.const_data_ptr<int64_t>();
  return apply_map(all_gatherv_map(comm, Counts(data, data + rows.numel()), site), input);
}

at::Tensor reduce_scatter(const Communicator& comm, const at::Tensor& input, ReduceOp op,
                          Site site) {
  check_input(Op::kReduceScatter, input, "input");
  checks::divide_rows(Op::kReduceScatter, input, comm.size());
  return apply_map(
      reduced_by("functional::reduce_scatter", op, comm.size(), reduce_scatter_map(comm, site)),
      input);
}

at::Tensor reduce_scatterv(const Communicator& comm, const at::Tensor& input,
                           std::span<const int64_t> counts, ReduceOp op, Site site) {
  check_input(Op::kReduceScatter, input, "input");
  return apply_map(
      reduced_by("functional::reduce_scatterv", op, comm.size(),
                 reduce_scatterv_map(comm, Counts(counts.begin(), counts.end()), site)),
      input);
}

at::Tensor broadcast(const Communicator& comm, const at::Tensor& input, int root, Site site) {
  check_input(Op::kBroadcast, input, "input");
  return apply_map(broadcast_map(comm, root, site), input);
}

at::Tensor reduce(const Communicator& comm, const at::Tensor& input, int root, ReduceOp op,
                  Site site) {
  check_input(Op::kReduce, input, "input");
  return apply_map(reduced_by("functional::reduce", op, comm.size(), reduce_map(comm, root, site)),
                   input);
}

at::Tensor gather(const Communicator& comm, const at::Tensor& input, int root, Site site) {
  check_input(Op::kGather, input, "input");
  return apply_map(gather_map(comm, root, site), input);
}

at::Tensor scatter(const Communicator& comm, const at::Tensor& like, const at::Tensor& input,
                   int root, Site site) {
  check_input(Op::kScatter, like, "like");
  const bool is_root = comm.rank() == root;
  if (is_root) {
    check_input(Op::kScatter, input, "input");
    checks::check_same_dtype(Op::kScatter, input, like);
  }
  return apply_map(scatter_map(comm, like.sizes().vec(), root, site),
                   is_root ? input : at::empty({0}, like.options().requires_grad(false)));
}

at::Tensor all_to_all(const Communicator& comm, const at::Tensor& input, Site site) {
  check_input(Op::kAllToAll, input, "input");
  return apply_map(all_to_all_map(comm, site), input);
}

at::Tensor all_to_allv(const Communicator& comm, const at::Tensor& input,
                       std::span<const int64_t> send_counts, Site site) {
  check_input(Op::kAllToAll, input, "input");
  checks::check_counts(Op::kAllToAll, send_counts, comm.size(), "send_counts");
  Communicator handle = comm;
  const Counts out(send_counts.begin(), send_counts.end());
  const at::Tensor theirs = handle.all_to_all(at::tensor(out, at::kLong), site);
  const auto* data = theirs.const_data_ptr<int64_t>();
  return apply_map(all_to_allv_map(comm, out, Counts(data, data + theirs.numel()), site), input);
}

at::Tensor send(const Communicator& comm, const at::Tensor& input, int dst, int tag, Site site) {
  check_input(Op::kSend, input, "input");
  return apply_map(send_map(comm, dst, tag, site), input);
}

at::Tensor recv(const Communicator& comm, const at::Tensor& like, int src, int tag, Site site) {
  check_input(Op::kRecv, like, "like");
  return apply_map(recv_map(comm, like.sizes().vec(), src, tag, site),
                   at::empty({0}, like.options().requires_grad(false)));
}

}  // namespace lockstep::inline v0::functional
