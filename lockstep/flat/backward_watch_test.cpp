#include "lockstep/flat/backward_watch.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::inline v0::flat_test {
namespace {

using ::testing::ElementsAre;

class Diary final : public flat::BackwardWatch {
 public:
  std::vector<std::string> lines;
  size_t throws_at = 99;

 private:
  void backward_began() override { lines.emplace_back("began"); }
  void gradient_arrived(size_t index, const at::Tensor&) override {
    lines.push_back(std::to_string(index));
    if (index == throws_at) throw std::runtime_error("a listener's error");
  }
  void backward_ended() override { lines.emplace_back("ended"); }
  void backward_failed() override { lines.emplace_back("failed"); }
};

struct Two {
  at::Tensor a = at::ones({2}).requires_grad_();
  at::Tensor b = at::ones({2}).requires_grad_();
  std::shared_ptr<Diary> diary = std::make_shared<Diary>();
  bool stumbles = false;
  Two() { diary->watch(std::vector<at::Tensor>{a, b}); }
  // b's gradient arrives first; a's does not arrive if the backward throws.
  void backward() const {
    const at::Tensor middle = a * 2;
    middle.register_hook([this](const at::Tensor&) {
      if (stumbles) throw std::runtime_error("a backward's error");
    });
    (middle * b).sum().backward();
  }
};

TEST(BackwardWatch, TellsWhatHappensInItsOrder) {
  const Two two;
  two.backward();
  two.backward();
  EXPECT_THAT(two.diary->lines,
              ElementsAre("began", "1", "0", "ended", "began", "1", "0", "ended"));
  two.diary->forget_failed_backward();
  EXPECT_EQ(two.diary->lines.size(), 8U);
}

TEST(BackwardWatch, ABackwardThatThrewIsToldOfBeforeTheNext) {
  Two two;
  two.stumbles = true;
  EXPECT_THROW(two.backward(), std::runtime_error);
  two.stumbles = false;
  two.backward();
  EXPECT_THAT(two.diary->lines, ElementsAre("began", "1", "failed", "began", "1", "0", "ended"));
}

TEST(BackwardWatch, OrWhereTheNextStepBegins) {
  Two two;
  two.stumbles = true;
  EXPECT_THROW(two.backward(), std::runtime_error);
  two.diary->forget_failed_backward();
  two.diary->forget_failed_backward();
  EXPECT_THAT(two.diary->lines, ElementsAre("began", "1", "failed"));
}

TEST(BackwardWatch, WhatTheListenerThrowsComesOutOfBackward) {
  const Two two;
  two.diary->throws_at = 1;
  EXPECT_THROW(two.backward(), std::runtime_error);
  two.diary->throws_at = 99;
  two.backward();  // it knows that it threw
  EXPECT_THAT(two.diary->lines, ElementsAre("began", "1", "began", "1", "0", "ended"));
}

TEST(BackwardWatch, ABackwardOfOtherParametersIsNotItsOwn) {
  const Two two;
  at::Tensor other = at::ones({2}).requires_grad_();
  other.sum().backward();
  EXPECT_TRUE(two.diary->lines.empty());
}

TEST(BackwardWatch, HooksDoNotKeepIt) {
  Two two;
  const std::weak_ptr<Diary> diary = two.diary;
  two.diary.reset();
  EXPECT_TRUE(diary.expired());
  two.backward();
}

// A result's hook comes first, in the outermost task; a checkpointed part has a task of its own.
TEST(BackwardWatch, ABackwardInsideAnotherBelongsToIt) {
  const Two two;
  at::Tensor loss = (two.a * 3).sum();
  loss.register_hook([&](const at::Tensor&) {
    two.diary->arm(/*outermost=*/true);
    const at::AutoGradMode enable_grad(true);
    (two.b * 2).sum().backward();
  });
  loss.backward();
  EXPECT_THAT(two.diary->lines, ElementsAre("began", "1", "0", "ended"));
}

}  // namespace
}  // namespace lockstep::inline v0::flat_test
