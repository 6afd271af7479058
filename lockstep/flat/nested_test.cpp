#include "lockstep/flat/nested.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/script.h>

#include <vector>

#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/tensor_model.h"

namespace lockstep::inline v0::nested_test {
namespace {

using c10::IValue;

// The value of a script: (x, [x, 2 x], {"three": 3 x}, "text", None).
IValue nested_value() {
  torch::jit::Module net("Net");
  net.define(R"(
def forward(self, x):
    return (x, [x, 2 * x], {"three": 3 * x}, "text", None)
)");
  return net.forward({at::ones({2})});
}

TEST(Nested, FindsTheTensorsOfAScriptsValue) {
  IValue value = nested_value();
  std::vector<double> found;
  flat::for_each_tensor(value,
                        [&](at::Tensor& tensor) { found.push_back(tensor[0].item<double>()); });
  EXPECT_EQ(found, (std::vector<double>{1, 1, 2, 3}));
  std::vector<IValue> values = {IValue("text"), value};
  found.clear();
  flat::for_each_tensor(values,
                        [&](at::Tensor& tensor) { found.push_back(tensor[0].item<double>()); });
  EXPECT_EQ(found.size(), 4u);
}

TEST(Nested, ReplacesTheTensorsOfAScriptsValue) {
  IValue value = nested_value();
  const IValue before = value;
  flat::for_each_tensor(value, [](at::Tensor& tensor) { tensor = tensor * 10; });
  const auto& elements = value.toTupleRef().elements();
  EXPECT_EQ(elements[0].toTensor()[0].item<double>(), 10);
  EXPECT_EQ(elements[1].toTensorVector()[1][0].item<double>(), 20);
  EXPECT_EQ(elements[2].toGenericDict().at("three").toTensor()[0].item<double>(), 30);
  EXPECT_EQ(elements[3].toStringRef(), "text");
  EXPECT_TRUE(elements[4].isNone());
  // The former value has its former tensors.
  EXPECT_EQ(before.toTupleRef().elements()[1].toTensorVector()[1][0].item<double>(), 2);
  // What is not replaced stays the same object.
  IValue same = nested_value();
  const IValue kept = same;
  flat::for_each_tensor(same, [](at::Tensor&) {});
  EXPECT_TRUE(same.is(kept));
}

TEST(Nested, RowsAreThoseOfTheFirstTensor) {
  EXPECT_EQ(flat::rows_of(std::vector<IValue>{IValue(2.0), at::ones({5, 3}), at::ones({7})}), 5);
  EXPECT_EQ(flat::rows_of(IValue(at::ones({4}))), 4);
  EXPECT_EQ(flat::rows_of(std::vector<IValue>{IValue("none")}, at::ones({3})), 3);
  EXPECT_EQ(flat::rows_of(std::vector<IValue>{}), 0);
}

TEST(NamedTensors, OfModelsOfEveryKind) {
  const auto names = [](const NamedTensors& tensors) {
    std::vector<std::string> result;
    for (const auto& entry : tensors) result.push_back(entry.first);
    return result;
  };
  using Names = std::vector<std::string>;
  torch::jit::Module inner("Inner"), script("Net");
  inner.register_parameter("w", at::ones({3}), false);
  inner.register_buffer("mean", at::ones({3}));
  script.register_module("inner", inner);
  script.register_parameter("shift", at::ones({1}), false);
  script.register_attribute("training", c10::BoolType::get(), true);  // as every loaded one has
  EXPECT_EQ(kind_of(script), ModelKind::kScript);
  EXPECT_TRUE(is_training(script));
  EXPECT_EQ(names(parameters_of(script)), (Names{"inner.w", "shift"}));
  EXPECT_EQ(names(state_of(script)), (Names{"inner.w", "shift", "inner.mean"}));
  script.eval();
  EXPECT_FALSE(is_training(script));

  TensorModel model({{"a", at::ones({1})}}, [](double x) { return 2 * x; }, {{"b", at::ones({2})}});
  EXPECT_EQ(kind_of(model), ModelKind::kList);
  EXPECT_EQ(names(state_of(model)), (Names{"a", "b"}));
  EXPECT_EQ(model(3.0), 6.0);
  EXPECT_TRUE(is_training(model));
  model.eval();
  EXPECT_FALSE(is_training(model));

  const NamedTensors list = {{"a", at::ones({1})}, {"undefined", {}}};
  EXPECT_EQ(kind_of(list), ModelKind::kList);
  EXPECT_EQ(names(parameters_of(list)), (Names{"a"}));
  EXPECT_TRUE(buffers_of(list).empty());
}

}  // namespace
}  // namespace lockstep::inline v0::nested_test
