#include "lockstep/insitu/tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/insitu/ring_test_support.h"

namespace lockstep::inline v0::insitu::ring_test {

using ::testing::HasSubstr;

TEST(RingTensors, ComeBackWithTheirValues) {
  const std::vector<at::Tensor> sample{at::arange(12, at::kFloat).view({3, 4}),
                                       at::tensor(7, at::kLong),
                                       at::arange(6).view({2, 3}).to(at::kBFloat16).t()};
  const std::string name = own_name("tensors");
  Producer producer = Producer::open(name, schema_of({"a", "b", "c"}, sample), {.slots = 2});
  Consumer consumer = Consumer::open(name, soon());
  ASSERT_TRUE(push_tensors(producer, sample, now()));
  Batch batch = consumer.take(1, soon());
  std::vector<at::Tensor> views = view_sample(batch, 0);
  EXPECT_TRUE(batch.empty());
  EXPECT_TRUE(stack(Batch()).empty());
  for (size_t i = 0; i < sample.size(); ++i) EXPECT_TRUE(at::equal(views[i], sample[i])) << i;
  // The last tensor keeps the slot, also as a view of a view.
  at::Tensor part = views[0].select(0, 1);
  views.clear();
  EXPECT_EQ(consumer.stats().reading, 1);
  EXPECT_EQ(part.sum().item<float>(), 4 + 5 + 6 + 7);
  part.reset();
  EXPECT_EQ(consumer.stats().reading, 0);
}

TEST(RingTensors, ABatchIsOneTensorAField) {
  const std::string name = own_name("stack");
  Producer producer = Producer::open(name, schema_of({"x"}, {at::zeros({2})}), {.slots = 2});
  Consumer consumer = Consumer::open(name, soon());
  std::thread simulation([&] {
    for (int i = 0; i < 5; ++i)
      EXPECT_TRUE(push_tensors(producer, {at::full({2}, static_cast<float>(i))}, soon()));
    producer.close(soon());
  });
  // More samples than the ring has slots.
  const auto five = take_tensors(consumer, 9, soon());
  simulation.join();
  ASSERT_EQ(five.size(), 1u);
  EXPECT_TRUE(at::equal(five[0], at::arange(5, at::kFloat).view({5, 1}).expand({5, 2})));
  EXPECT_EQ(take_tensors(consumer, 3, soon())[0].sizes(), at::IntArrayRef({0, 2}));
  EXPECT_EQ(stack(consumer.take(1, now()))[0].sizes(), at::IntArrayRef({0, 2}));
}

TEST(RingTensors, AnotherShapeIsNamedWithBothForms) {
  const std::string name = own_name("shape");
  Producer producer = Producer::open(name, schema_of({"x"}, {at::zeros({2})}));
  try {
    push_tensors(producer, {at::zeros({3})}, now());
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("x float32 [2]"));
    EXPECT_THAT(error.what(), HasSubstr("x float32 [3]"));
  }
  EXPECT_THROW(push_tensors(producer, {}, now()), InvalidArgument);
  EXPECT_THROW(schema_of({"x"}, {at::zeros({1}, at::kComplexFloat)}), InvalidArgument);
  EXPECT_EQ(producer.stats().abandoned + producer.stats().dropped, 0u);
}

}  // namespace lockstep::inline v0::insitu::ring_test
