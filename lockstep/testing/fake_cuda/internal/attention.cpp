// Attention in one operation, as CUDA's memory-efficient kernels do it: by the CPU's flash kernel.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <array>
#include <functional>
#include <initializer_list>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/fallback.h"
#include "lockstep/testing/fake_cuda/internal/host_views.h"
#include "lockstep/testing/fake_cuda/internal/launch.h"

namespace lockstep::inline v0::testing::fake {
namespace {

// What the CPU's kernel cannot do is composed, as on a GPU.
int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool,
                         std::optional<double>, bool grouped) {
  const int64_t width = query.size(-1);
  const bool fits = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && !grouped &&
                    key.size(-1) == width && value.size(-1) == width && query.numel() > 0 &&
                    key.numel() > 0 && dropout == 0 && query.stride(-1) == 1 &&
                    key.stride(-1) == 1 && value.stride(-1) == 1 && query.size(1) == key.size(1) &&
                    at::isFloatingType(query.scalar_type()) &&
                    !(mask && mask->defined() && mask->requires_grad());
  const bool wanted = at::globalContext().userEnabledMemEfficientSDP();
  return static_cast<int64_t>(fits && wanted ? at::SDPBackend::efficient_attention
                                             : at::SDPBackend::math);
}

// One operation on the devices of its tensors, by work on views of the CPU's.
class AttentionCall {
 public:
  AttentionCall(const std::string& name, const at::Tensor& query)
      : maker_(name), device_(query.device().index()), launch_(name, current_slot(device_)) {
    FakeCudaCounts counts;
    counts.operations = counts.fallbacks = 1;
    count(counts);
  }
  void reads(std::initializer_list<at::Tensor> tensors) {
    for (const at::Tensor& tensor : tensors) launch_.reads(tensor);
    launch_.start();
  }
  at::Tensor host(const at::Tensor& tensor) { return views_.of(tensor); }
  std::optional<at::Tensor> host(const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? std::optional(views_.of(*tensor)) : std::nullopt;
  }
  std::vector<at::Tensor> results(const std::function<std::vector<at::Tensor>()>& work) const {
    return results_of(launch_, device_, work);
  }

 private:
  MadeBy maker_;
  int device_;
  Launch launch_;
  HostViews views_;
  PlainKernels plain_;
};

at::Tensor or_undefined(const std::optional<at::Tensor>& tensor) {
  return tensor.value_or(at::Tensor());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& bias, bool, double dropout, bool causal,
    std::optional<double> scale) {
  AttentionCall call("aten::_scaled_dot_product_efficient_attention", query);
  call.reads({query, key, value, or_undefined(bias)});
  const auto results = call.results(
      [=, q = call.host(query), k = call.host(key), v = call.host(value), b = call.host(bias)] {
        const auto [output, sums] =
            at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, b, scale);
        const at::Tensor seed = at::zeros({}, at::kLong);
        return std::vector<at::Tensor>{output, sums, seed, seed};
      });
  return {results[0], results[1], results[2], results[3]};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& bias, const at::Tensor& output,
    const at::Tensor& sums, const at::Tensor&, const at::Tensor&, double dropout,
    std::array<bool, 4>, bool causal, std::optional<double> scale) {
  AttentionCall call("aten::_scaled_dot_product_efficient_attention_backward", query);
  call.reads({gradient, query, key, value, bias, output, sums});
  const auto results = call.results(
      [=, g = call.host(gradient), q = call.host(query), k = call.host(key), v = call.host(value),
       o = call.host(output), s = call.host(sums), b = call.host(std::optional(bias))] {
        const auto [of_query, of_key, of_value] =
            at::_scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, o, s, dropout,
                                                                     causal, b, scale);
        return std::vector<at::Tensor>{of_query, of_key, of_value};
      });
  return {results[0], results[1], results[2], at::Tensor()};
}

}  // namespace

void register_attention(torch::Library& own) {
  own.impl("_scaled_dot_product_efficient_attention", &attention);
  own.impl("_scaled_dot_product_efficient_attention_backward", &attention_backward);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
}

}  // namespace lockstep::inline v0::testing::fake
