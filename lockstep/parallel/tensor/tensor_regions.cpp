#include "lockstep/parallel/tensor/tensor_regions.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Site = Communicator::Site;

enum class Way : uint8_t {
  kCopy,
  kSum,
  kGatherRows,
  kScatterRows,
  kOwnRows,
  kGatherColumns,
  kOwnColumns
};

// A region's forward, and, the other way round, its backward.
struct Region final : torch::CustomClassHolder {
  Region(Communicator comm, const char* name, Way way, Way back, Site site)
      : comm(std::move(comm)), name(name), way(way), back(back), site(site) {}

  Communicator comm;
  const char* name;
  Way way, back;
  Site site;
  bool is_backward = false;
  std::vector<int64_t> counts;  // columns of the parts
};
using RegionPtr = c10::intrusive_ptr<Region>;

RegionPtr turned(const Region& region) {
  auto other =
      c10::make_intrusive<Region>(region.comm, region.name, region.back, region.way, region.site);
  other->is_backward = !region.is_backward;
  other->counts = region.counts;
  return other;
}

at::Tensor sum(Region& region, const at::Tensor& x) {
  at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  const std::string note =
      std::string("tensor: ") + region.name + (region.is_backward ? ", backward" : "");
  region.comm.iall_reduce(y, ReduceOp::kSum, call_note(note), region.site).wait();
  return y;
}

at::Tensor all_columns(Region& region, const at::Tensor& x) {
  const int64_t all = std::accumulate(region.counts.begin(), region.counts.end(), int64_t{0});
  const at::Tensor mine = x.t().contiguous();
  const at::Tensor columns = at::empty({all, x.size(0)}, mine.options());
  region.comm.iall_gatherv(columns, mine, region.counts, region.site).wait();
  return columns.t().contiguous();
}

at::Tensor own_columns(const Region& region, const at::Tensor& x) {
  const auto rank = static_cast<size_t>(region.comm.rank());
  const int64_t first = std::accumulate(region.counts.begin(),
                                        region.counts.begin() + region.comm.rank(), int64_t{0});
  return x.narrow(1, first, region.counts[rank]).contiguous();
}

at::Tensor run(Region& region, const at::Tensor& x) {
  switch (region.way) {
    case Way::kCopy:
      return x;
    case Way::kSum:
      return sum(region, x);
    case Way::kGatherRows:
      return region.comm.all_gather(x, region.site);
    case Way::kScatterRows:
      return region.comm.reduce_scatter(x, ReduceOp::kSum, region.site);
    case Way::kOwnRows: {
      const int64_t rows = x.size(0) / region.comm.size();
      return x.narrow(0, region.comm.rank() * rows, rows).contiguous();
    }
    case Way::kGatherColumns:
      return all_columns(region, x);
    case Way::kOwnColumns:
      break;
  }
  return own_columns(region, x);
}

at::Tensor pass(const RegionPtr& region, const at::Tensor& x);

class RegionNode final : public torch::autograd::Function<RegionNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const RegionPtr& region) {
    context->saved_data["region"] = c10::IValue::make_capsule(region);
    return run(*region, x);
  }

  // Undefined gradients come as zeros: this part takes part whatever it has to say.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["region"].toCapsule();
    return {pass(turned(static_cast<const Region&>(*capsule)), gradients[0]), at::Tensor()};
  }
};

at::Tensor pass(const RegionPtr& region, const at::Tensor& x) {
  if (region->comm.size() == 1) return x;
  if (at::GradMode::is_enabled() && x.requires_grad()) return RegionNode::apply(x, region);
  const at::NoGradGuard no_grad;
  return run(*region, x);
}

at::Tensor through(const Communicator& comm, const char* name, Way way, Way back,
                   const at::Tensor& x, Site site) {
  if (!x.defined() || !at::isFloatingType(x.scalar_type()) || !is_supported_dtype(x.scalar_type()))
    throw InvalidArgument(std::string(name) +
                          ": give a tensor of float32, float64 or bfloat16, not " +
                          (x.defined() ? dtype_name(x.scalar_type()) : "an undefined one"));
  if ((way == Way::kScatterRows || way == Way::kOwnRows) &&
      (x.dim() == 0 || x.size(0) % comm.size() != 0))
    throw InvalidArgument(std::string(name) + ": " + std::to_string(x.dim() == 0 ? 1 : x.size(0)) +
                          " rows do not divide among " + std::to_string(comm.size()) + " parts");
  if (way == Way::kGatherRows && x.dim() == 0)
    throw InvalidArgument(std::string(name) + ": a number has no rows; give [rows, ...]");
  return pass(c10::make_intrusive<Region>(comm, name, way, back, site), x);
}

}  // namespace

at::Tensor copy_to_parts(const Communicator& comm, const at::Tensor& x, Site site) {
  return through(comm, "copy_to_parts", Way::kCopy, Way::kSum, x, site);
}

at::Tensor reduce_from_parts(const Communicator& comm, const at::Tensor& x, Site site) {
  return through(comm, "reduce_from_parts", Way::kSum, Way::kCopy, x, site);
}

at::Tensor gather_rows(const Communicator& comm, const at::Tensor& x, Site site) {
  return through(comm, "gather_rows", Way::kGatherRows, Way::kScatterRows, x, site);
}

at::Tensor scatter_rows(const Communicator& comm, const at::Tensor& x, Site site) {
  return through(comm, "scatter_rows", Way::kScatterRows, Way::kGatherRows, x, site);
}

at::Tensor take_rows(const Communicator& comm, const at::Tensor& x, Site site) {
  return through(comm, "take_rows", Way::kOwnRows, Way::kGatherRows, x, site);
}

at::Tensor join_rows(const Communicator& comm, const at::Tensor& x, Site site) {
  return through(comm, "join_rows", Way::kGatherRows, Way::kOwnRows, x, site);
}

at::Tensor gather_columns(const Communicator& comm, const at::Tensor& x,
                          const std::vector<int64_t>& counts, Site site) {
  const auto rank = static_cast<size_t>(comm.rank());
  if (counts.size() != static_cast<size_t>(comm.size()) || !x.defined() || x.dim() != 2 ||
      x.size(1) != counts[rank] || !at::isFloatingType(x.scalar_type()))
    throw InvalidArgument("gather_columns: give floating-point [rows, counts[rank]] and " +
                          std::to_string(comm.size()) + " counts");
  auto region = c10::make_intrusive<Region>(comm, "gather_columns", Way::kGatherColumns,
                                            Way::kOwnColumns, site);
  region->counts = counts;
  return pass(region, x);
}

}  // namespace lockstep::inline v0
