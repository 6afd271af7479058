// An optimizer step on 110 million parameters (BERT-base's tensors), torch's and Lockstep's in
// alternating rounds on the same gradients: milliseconds (the median) and the ratio. On one thread,
// pinned to a core:
//   taskset -c 1 build/release/bin/bench/optimizers [THREADS]
#include <ATen/Parallel.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/optim/lamb.h"
#include "lockstep/optim/sgd.h"

namespace {

using namespace lockstep::optim;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr int kRounds = 9;

// The shapes of BERT-base, uncased: 109.5 million elements in 199 tensors.
std::vector<std::vector<int64_t>> shapes() {
  std::vector<std::vector<int64_t>> result = {{30522, 768}, {512, 768}, {2, 768}, {768}, {768}};
  for (int layer = 0; layer < 12; ++layer) {
    for (int i = 0; i < 4; ++i) result.insert(result.end(), {{768, 768}, {768}});
    result.insert(result.end(),
                  {{768}, {768}, {3072, 768}, {3072}, {768, 3072}, {768}, {768}, {768}});
  }
  result.insert(result.end(), {{768, 768}, {768}});
  return result;
}

std::vector<at::Tensor> parameters() {
  std::vector<at::Tensor> result;
  for (const auto& shape : shapes()) {
    result.push_back(torch::randn(shape).mul_(0.02).set_requires_grad(true));
    result.back().mutable_grad() = torch::randn(shape).mul_(1e-3);
  }
  return result;
}

double milliseconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  return spent.count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void compare(const char* what, const std::function<void()>& theirs,
             const std::function<void()>& ours) {
  for (int i = 0; i < 2; ++i) theirs(), ours();  // state is made, pages are touched
  std::vector<double> their_times, our_times;
  for (int round = 0; round < kRounds; ++round) {
    their_times.push_back(milliseconds(theirs));
    our_times.push_back(milliseconds(ours));
  }
  std::printf("%-52s %9.1f %9.1f %7.2f\n", what, median(their_times), median(our_times),
              median(their_times) / median(our_times));
}

// The gradients in the optimizer's own flat memory.
void fill_flat(const std::vector<at::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) tensor.mutable_grad().normal_(0, 1e-3);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 1);
  std::printf("%d thread(s), medians of %d alternating rounds\n", at::get_num_threads(), kRounds);
  std::printf("%-52s %9s %9s %7s\n", "milliseconds", "torch", "lockstep", "ratio");
  // Never below the limit, so that both multiply; gradients shrink by a thousandth a round.
  const auto limit = [](const std::vector<at::Tensor>& p) {
    return 0.999 * global_norm(gradients_of(p));
  };
  {
    const auto a = parameters(), b = parameters();
    torch::optim::AdamW theirs(a, AdamWOptions(1e-4));
    FusedAdamW ours(b, AdamWOptions(1e-4));
    compare("AdamW, separate gradients", [&] { theirs.step(); }, [&] { ours.step(); });
    compare(
        "clip_grad_norm_ / global_norm", [&] { torch::nn::utils::clip_grad_norm_(a, 1e-3); },
        [&] { global_norm(gradients_of(b)); });
    double max_norm = limit(b);
    std::vector<double> passes, plain, clipped;
    for (int round = 0; round < kRounds; ++round, max_norm *= 0.999) {
      passes.push_back(milliseconds([&] { torch::nn::utils::clip_grad_norm_(a, 1e-3); }));
      plain.push_back(milliseconds([&] { ours.step(StepOptions{}); }));
      clipped.push_back(milliseconds([&] { ours.step({.max_norm = max_norm}); }));
    }
    const double added = median(clipped) - median(plain);
    std::printf("%-52s %9.1f %9.1f %7.2f\n", "clip_grad_norm_ / what max_norm adds to a step",
                median(passes), added, median(passes) / added);
    compare(
        "clip_grad_norm_ and AdamW / step with max_norm",
        [&] { torch::nn::utils::clip_grad_norm_(a, 1e-3), theirs.step(); },
        [&] { ours.step({.max_norm = 1e-3}); });
  }
  {
    const auto a = parameters(), b = parameters();
    torch::optim::AdamW theirs(a, AdamWOptions(1e-4));
    FusedAdamW ours(b, AdamWOptions(1e-4), {.flat_gradients = true});
    fill_flat(b);
    compare("AdamW, flat gradients", [&] { theirs.step(); }, [&] { ours.step(); });
  }
  {
    const auto a = parameters(), b = parameters();
    torch::optim::SGD theirs(a, SGDOptions(1e-4).momentum(0.9));
    FusedSGD ours(b, SGDOptions(1e-4).momentum(0.9));
    compare("SGD with momentum, separate gradients", [&] { theirs.step(); }, [&] { ours.step(); });
  }
  {
    const auto a = parameters(), b = parameters();
    torch::optim::AdamW theirs(a, AdamWOptions(1e-4));
    Lamb ours(b, AdamWOptions(1e-4));
    compare("LAMB (beside torch's AdamW)", [&] { theirs.step(); }, [&] { ours.step(); });
  }
  return 0;
}
