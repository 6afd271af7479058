#include "lockstep/flat/gradient_placement.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace lockstep::inline v0::flat {
namespace {

constexpr int64_t kNumel = 1000;
constexpr size_t kBytes = kNumel * sizeof(float);

at::Tensor fresh(int64_t numel = kNumel) {
  return at::empty({numel}, at::kFloat);
}

// One "backward": makes this many tensors, of which the last `gradients` become the gradients.
std::vector<at::Tensor> backward(GradientPlacement& births, int before, int gradients) {
  births.begin();
  for (int i = 0; i < gradients; ++i) births.expect(static_cast<size_t>(i), true);
  for (int i = 0; i < before; ++i) (void)fresh();
  std::vector<at::Tensor> made;
  for (int i = 0; i < gradients; ++i) {
    made.push_back(fresh());
    births.arrived(static_cast<size_t>(i), made.back());
  }
  births.end();
  return made;
}

TEST(GradientPlacement, TheAllocationThatBecameAGradientIsGivenItsPlaceTheNextTime) {
  const at::Tensor flat = at::full({2 * kNumel}, 7, at::kFloat);
  GradientPlacement births({kBytes, kBytes});
  const at::Tensor places[] = {flat.narrow(0, 0, kNumel), flat.narrow(0, kNumel, kNumel)};
  for (size_t i = 0; i < 2; ++i) births.set_place(i, places[i]);
  for (const at::Tensor& gradient : backward(births, 3, 2))
    EXPECT_FALSE(gradient.is_alias_of(flat));
  for (int step = 0; step < 3; ++step) {
    const auto made = backward(births, 3, 2);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(made[i].data_ptr(), places[i].data_ptr());
      EXPECT_TRUE(births.occupied(i));
    }
  }
  for (size_t i = 0; i < 2; ++i) EXPECT_FALSE(births.occupied(i));
}

TEST(GradientPlacement, NothingIsPlacedBeforeAndAfterABackwardNorOnOtherThreads) {
  const at::Tensor flat = at::full({kNumel}, 7, at::kFloat);
  GradientPlacement births({kBytes});
  births.set_place(0, flat);
  (void)backward(births, 0, 1);
  EXPECT_NE(fresh().data_ptr(), flat.data_ptr());
  births.begin();
  births.expect(0, true);
  std::thread([&] {
    EXPECT_FALSE(births.watching());
    EXPECT_NE(fresh().data_ptr(), flat.data_ptr());
  }).join();
  EXPECT_TRUE(births.watching());
  EXPECT_EQ(fresh().data_ptr(), flat.data_ptr());
  births.end();
  EXPECT_FALSE(births.watching());
}

TEST(GradientPlacement, AnotherThreadMayEndIt) {
  GradientPlacement births({kBytes});
  births.set_place(0, at::full({kNumel}, 7, at::kFloat));
  (void)backward(births, 0, 1);
  births.begin();
  std::thread([&] { births.end(); }).join();
  EXPECT_FALSE(births.watching());
  births.expect(0, true);
  const at::Tensor made = fresh();
  EXPECT_FALSE(births.occupied(0));
}

TEST(GradientPlacement, APlaceIsLentToOneTensorAtATime) {
  const at::Tensor flat = at::full({kNumel}, 7, at::kFloat);
  GradientPlacement births({kBytes});
  births.set_place(0, flat);
  (void)backward(births, 0, 1);
  const auto kept = backward(births, 0, 1);
  EXPECT_EQ(kept[0].data_ptr(), flat.data_ptr());
  const auto next = backward(births, 0, 1);
  EXPECT_NE(next[0].data_ptr(), flat.data_ptr());
  EXPECT_TRUE(births.occupied(0));
}

TEST(GradientPlacement, AGradientThatIsNotAwaitedLiesElsewhere) {
  const at::Tensor flat = at::full({kNumel}, 7, at::kFloat);
  GradientPlacement births({kBytes});
  births.set_place(0, flat);
  (void)backward(births, 0, 1);
  births.begin();
  births.expect(0, false);
  EXPECT_NE(fresh().data_ptr(), flat.data_ptr());
}

TEST(GradientPlacement, ABackwardThatGoesAnotherWayIsLearnedAnew) {
  const at::Tensor flat = at::full({kNumel}, 7, at::kFloat);
  GradientPlacement births({kBytes});
  births.set_place(0, flat);
  (void)backward(births, 0, 1);
  EXPECT_NE(backward(births, 2, 1)[0].data_ptr(), flat.data_ptr());
  EXPECT_EQ(backward(births, 2, 1)[0].data_ptr(), flat.data_ptr());
}

TEST(GradientPlacement, ATensorInAPlaceOutlivesEverybodyElse) {
  at::Tensor gradient;
  {
    at::Tensor flat = at::full({kNumel}, 7, at::kFloat);
    GradientPlacement births({kBytes});
    births.set_place(0, flat);
    (void)backward(births, 0, 1);
    gradient = backward(births, 0, 1)[0];
    EXPECT_EQ(gradient.data_ptr(), flat.data_ptr());
  }
  gradient.fill_(3);
  EXPECT_EQ(gradient.sum().item<float>(), 3 * kNumel);
}

TEST(GradientPlacement, VacatingGivesTheOthersACopy) {
  const at::Tensor flat = at::full({kNumel}, 7, at::kFloat);
  GradientPlacement births({kBytes});
  births.set_place(0, flat);
  (void)backward(births, 0, 1);
  const at::Tensor gradient = backward(births, 0, 1)[0].fill_(2);
  const at::Tensor other = gradient.detach();
  GradientPlacement::vacate(gradient);
  EXPECT_FALSE(births.occupied(0));
  flat.fill_(9);
  EXPECT_EQ(other.sum().item<float>(), 2 * kNumel);
  EXPECT_EQ(gradient.data_ptr(), other.data_ptr());
}

// The allocations that libtorch's own libraries make (oneDNN's scratch memory).
TEST(GradientPlacement, RawAllocationsMayLieInAPlaceToo) {
  const at::Tensor flat = at::full({kNumel}, 7, at::kFloat);
  GradientPlacement births({kBytes});
  births.set_place(0, flat);
  (void)backward(births, 0, 1);
  births.begin();
  births.expect(0, true);
  c10::Allocator& allocator = *c10::GetAllocator(c10::DeviceType::CPU);
  void* placed = allocator.raw_allocate(kBytes);
  void* ordinary = allocator.raw_allocate(kBytes);
  births.end();
  EXPECT_EQ(placed, flat.data_ptr());
  EXPECT_TRUE(births.occupied(0));
  allocator.raw_deallocate(placed);
  allocator.raw_deallocate(ordinary);
  EXPECT_FALSE(births.occupied(0));
}

}  // namespace
}  // namespace lockstep::inline v0::flat
