// What the text is. That it computes the same: tests/oracle/export_parity.py.
#include "lockstep/export/module_to_python.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace module_to_python_test {

using testing::AllOf;
using testing::HasSubstr;
namespace nn = torch::nn;

class OwnForwardImpl : public nn::Module {
 public:
  OwnForwardImpl() : nn::Module("mine::Attention") {}
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(OwnForward);

// What libtorch advises where a Sequential is to be in another one.
class InnerImpl : public nn::SequentialImpl {
 public:
  template <typename... Modules>
  explicit InnerImpl(Modules&&... modules)
      : nn::SequentialImpl(std::forward<Modules>(modules)...) {}
  at::Tensor forward(const at::Tensor& x) { return nn::SequentialImpl::forward(x); }
};
TORCH_MODULE(Inner);

class DerivedImpl : public nn::LinearImpl {
 public:
  DerivedImpl() : nn::LinearImpl(2, 2) {}
};
TORCH_MODULE(Derived);

std::string refusal(const nn::Module& module, const std::string& name = "Net") {
  try {
    module_to_python(module, name);
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
    return error.what();
  }
  return "no error";
}

TEST(ModuleToPython, ASequentialByItsNames) {
  Inner inner(nn::Conv2d(nn::Conv2dOptions(1, 2, {3, 5}).padding(torch::kSame).bias(false)),
              nn::BatchNorm2d(nn::BatchNorm2dOptions(2).momentum(std::nullopt)));
  nn::Sequential net({{"begin", nn::AnyModule(inner)}, {"act", nn::AnyModule(nn::LeakyReLU())}});
  EXPECT_EQ(
      module_to_python(*net, "Net", {.in_order = {inner->name()}}),
      "from collections import OrderedDict\n"
      "\n"
      "from torch import nn\n"
      "\n"
      "\n"
      "class Net(nn.Sequential):\n"
      "    def __init__(self):\n"
      "        super().__init__(OrderedDict([\n"
      "            (\"begin\", nn.Sequential(OrderedDict([\n"
      "                (\"0\", nn.Conv2d(in_channels=1, out_channels=2, kernel_size=(3, 5), stride=(1, 1), "
      "padding=\"same\", dilation=(1, 1), groups=1, bias=False, padding_mode=\"zeros\")),\n"
      "                (\"1\", nn.BatchNorm2d(num_features=2, eps=1e-05, momentum=None, affine=True, "
      "track_running_stats=True)),\n"
      "            ]))),\n"
      "            (\"act\", nn.LeakyReLU(negative_slope=0.01)),\n"
      "        ]))\n"
      "\n"
      "\n"
      "def make():\n"
      "    return Net()\n");
}

TEST(ModuleToPython, ContainersWithoutAForwardAreSaid) {
  nn::ModuleList list(nn::Linear(2, 3), nn::Tanh());
  EXPECT_THAT(
      module_to_python(*list, "Net"),
      HasSubstr(
          "class Net(nn.Sequential):  # a ModuleList, whose modules are called in their order here"));
  nn::ModuleDict dict;
  dict->update({{"a \"b\"", nn::Linear(2, 3).ptr()}});
  EXPECT_THAT(module_to_python(*dict, "Net"),
              AllOf(HasSubstr("# a ModuleDict"), HasSubstr("(\"a \\\"b\\\"\", nn.Linear(")));
}

TEST(ModuleToPython, NumbersAreReadAsTheSame) {
  nn::Sequential net(nn::Softplus(nn::SoftplusOptions().beta(0.1).threshold(1e300)),
                     nn::Hardtanh(nn::HardtanhOptions().min_val(-INFINITY).max_val(3)),
                     nn::ELU(nn::ELUOptions().alpha(1)));
  EXPECT_THAT(module_to_python(*net, "Net"),
              AllOf(HasSubstr("beta=0.1, threshold=1e+300"),
                    HasSubstr("min_val=float(\"-inf\"), max_val=3.0"), HasSubstr("alpha=1.0")));
}

TEST(ModuleToPython, NamesAllThatItCannotWrite) {
  nn::ModuleDict net;
  net->update({{"begin", nn::Linear(2, 2).ptr()},
               {"inner", nn::Sequential(nn::ReLU(), OwnForward()).ptr()},
               {"function", nn::Functional(torch::relu).ptr()},
               {"derived", Derived().ptr()},
               {"own", Inner(nn::ReLU()).ptr()}});
  const std::string error = refusal(*net);
  EXPECT_THAT(error, AllOf(HasSubstr("'inner.1' is a mine::Attention"),
                           HasSubstr("'function' is a torch::nn::FunctionalImpl"),
                           HasSubstr("'derived' is a "), HasSubstr("'own' is a "),
                           HasSubstr("TwinOptions::in_order"), HasSubstr("by hand")));
  EXPECT_THAT(error, testing::Not(HasSubstr("'begin'")));
}

TEST(ModuleToPython, TheModuleItself) {
  EXPECT_THAT(refusal(*OwnForward()),
              HasSubstr("the module is a mine::Attention, which has a forward of its own"));
  EXPECT_THAT(refusal(*nn::Linear(2, 2)), HasSubstr("put it into a torch::nn::Sequential"));
}

TEST(ModuleToPython, NamesOfPythonClasses) {
  const nn::Sequential net(nn::ReLU{});
  for (const char* name : {"", "2d", "a-b", "class", "Net\nimport os", "make", "nn"})
    EXPECT_THAT(refusal(*net, name), HasSubstr("is no name for a Python class")) << name;
  EXPECT_THAT(module_to_python(*net, "_Net2"), HasSubstr("class _Net2("));
}

}  // namespace module_to_python_test
}  // namespace lockstep::inline v0
