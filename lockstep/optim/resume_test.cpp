// State in safetensors files: a resumed run takes the same steps, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>

#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/internal/test_parameters.h"
#include "lockstep/optim/lamb.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::inline v0::optim::resume_test {

using ::testing::HasSubstr;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

class Resume : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return dir_ / "optimizer.safetensors"; }

 private:
  TestDirectory dir_;
};

template <typename Optimizer>
void run(Optimizer& optimizer, const std::vector<at::Tensor>& parameters, int from, int to) {
  for (int step = from; step < to; ++step) {
    auto gradients = test::gradients(parameters, step);
    if (step % 2 == 0) gradients[1].reset();  // step counts differ
    test::give_gradients(parameters, gradients);
    optimizer.step({.max_norm = 20.0});
  }
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters)
    result.push_back(parameter.detach().clone().set_requires_grad(true));
  return result;
}

void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

template <typename Optimizer, typename Options>
void resumes(const Options& options, const std::filesystem::path& file) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const auto whole = test::parameters(dtype);
    Optimizer uninterrupted(whole, options);
    run(uninterrupted, whole, 0, 7);
    save_optimizer(uninterrupted, file);
    const auto resumed = copies(whole);
    Optimizer fresh(resumed, Options(options).lr(99));  // the file's rate is used
    run(uninterrupted, whole, 7, 15);
    load_optimizer(fresh, file);
    run(fresh, resumed, 7, 15);
    expect_same_bits(resumed, whole);
    // The flat memory's values are replaced also in the middle of a run.
    const auto again = copies(whole);
    save_optimizer(uninterrupted, file);
    load_optimizer(fresh, file);
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < again.size(); ++i) resumed[i].copy_(again[i]);
    }
    run(uninterrupted, whole, 15, 18);
    run(fresh, resumed, 15, 18);
    expect_same_bits(resumed, whole);
  }
}

TEST_F(Resume, IsBitIdentical) {
  resumes<FusedAdamW>(AdamWOptions(1e-2), file());
  resumes<FusedAdamW>(AdamWOptions(1e-2).amsgrad(true), file());
  resumes<FusedAdam>(AdamOptions(1e-2).weight_decay(0.1), file());
  resumes<FusedSGD>(SGDOptions(1e-2), file());
  resumes<FusedSGD>(SGDOptions(1e-2).momentum(0.9).dampening(0.2), file());
  resumes<Lamb>(AdamWOptions(1e-2), file());
}

TEST_F(Resume, FilesAreTorchs) {
  const auto ours = test::parameters(at::kDouble);
  FusedAdamW fused(ours, AdamWOptions(1e-2));
  run(fused, ours, 0, 5);
  save_optimizer(fused, file());

  const auto theirs = copies(ours);
  torch::optim::AdamW plain(theirs, AdamWOptions(1e-2));
  load_optimizer(plain, file());
  const auto gradients = test::gradients(ours, 9);
  test::give_gradients(ours, gradients);
  test::give_gradients(theirs, gradients);
  fused.step();
  plain.step();
  EXPECT_LT(test::relative_distance(ours, theirs), 1e-15);

  save_optimizer(plain, file());  // and in the other direction
  const auto back = copies(theirs);
  FusedAdamW again(back, AdamWOptions(1e-2));
  load_optimizer(again, file());
  test::give_gradients(back, gradients);
  test::give_gradients(theirs, gradients);
  again.step();
  plain.step();
  EXPECT_LT(test::relative_distance(back, theirs), 1e-15);
}

TEST_F(Resume, LambIsNotAdamW) {
  const auto parameters = test::parameters(at::kFloat);
  Lamb lamb(parameters, AdamWOptions(1e-2));
  run(lamb, parameters, 0, 1);
  save_optimizer(lamb, file());
  const auto others = copies(parameters);
  FusedAdamW adamw(others, AdamWOptions(1e-2));
  try {
    load_optimizer(adamw, file());
    FAIL() << "no error";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("was saved from LAMB, but the optimizer is AdamW"));
  }
}

}  // namespace lockstep::inline v0::optim::resume_test
