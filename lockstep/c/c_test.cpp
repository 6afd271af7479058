// The C interface in one process: a world of one, mistakes, and what only C++ can make for it.
#include <ATen/DLConvertor.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>
#include <string>
#include <thread>

#include "lockstep/c/checks_test.h"
#include "lockstep/c/internal/arrays.h"
#include "lockstep/c/lockstep.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/device/choose.h"

namespace lockstep::inline v0::c_test {
namespace {

TEST(C, MistakesHaveAStatusAndOneLine) {
  EXPECT_EQ(check_mistakes(), 0);
}

TEST(C, AloneEveryFunctionWorks) {
  EXPECT_EQ(check_collectives(), 0);
  EXPECT_EQ(check_strides(), 0);
  EXPECT_EQ(check_messages(), 0);
  EXPECT_EQ(check_groups(), 0);
  EXPECT_EQ(check_store(), 0);
  EXPECT_EQ(check_arrays(), 0);
}

TEST(CModel, AloneItTrains) {
  EXPECT_EQ(check_training(), 0);
  EXPECT_EQ(check_loss_function(), 0);
}

TEST(CModel, CheckpointsAndScripts) {
  const TestDirectory folder;
  EXPECT_EQ(check_checkpoint(folder.path().c_str()), 0);
}

TEST(CModel, MistakesHaveAStatusAndOneLine) {
  const TestDirectory folder;
  EXPECT_EQ(check_model_mistakes(folder.path().c_str()), 0);
}

TEST(C, EachThreadHasItsOwnError) {
  EXPECT_EQ(lockstep_comm_rank(nullptr, nullptr), LOCKSTEP_INVALID_ARGUMENT);
  const std::string own = lockstep_last_error();
  EXPECT_EQ(own, "comm is NULL");
  std::thread([] {
    EXPECT_STREQ(lockstep_last_error(), "");
    EXPECT_EQ(lockstep_model_save(nullptr, "x"), LOCKSTEP_INVALID_ARGUMENT);
    EXPECT_STREQ(lockstep_last_error(), "model is NULL");
  }).join();
  EXPECT_EQ(lockstep_last_error(), own);
}

// An object whose destructor runs when its thread ends, after those of objects made later.
struct CallsLockstep {
  std::string* text = nullptr;
  ~CallsLockstep() {
    if (text == nullptr) return;
    lockstep_model* model = nullptr;
    lockstep_model_load("/no/such/file/with/such/a/long/name.pt", "cpu", &model);
    *text = lockstep_last_error();
  }
};

TEST(C, AnErrorAtTheEndOfAThreadHasItsText) {
  std::string text;
  std::thread([&text] {
    thread_local CallsLockstep at_end;
    at_end.text = &text;
    lockstep_model* model = nullptr;
    EXPECT_EQ(lockstep_model_load("/no/such/file/either", "cpu", &model), LOCKSTEP_DATA_ERROR);
  }).join();
  EXPECT_EQ(text, "/no/such/file/with/such/a/long/name.pt: there is no such TorchScript file");
}

TEST(C, ALongErrorIsCutBetweenCharacters) {
  for (const char* prefix : {"", "x"}) {
    std::string path = prefix;
    while (path.size() < 6000) path += "é";
    lockstep_model* model = nullptr;
    EXPECT_EQ(lockstep_model_load(path.c_str(), "cpu", &model), LOCKSTEP_DATA_ERROR);
    const std::string text = lockstep_last_error();
    EXPECT_GT(text.size(), 4000U);
    EXPECT_LT(text.size(), 4096U);
    EXPECT_EQ(text.substr(text.size() - 2), "é");
  }
}

TEST(CModel, CudaIsTheDeviceOfTheRank) {
  using c_api::device_of;
  const device::VisibleDevices none{}, one{.has_cuda = true, .cuda = 1},
      four{.has_cuda = true, .cuda = 4};
  EXPECT_EQ(device_of("cuda", 2, four), at::Device("cuda:2"));
  EXPECT_EQ(device_of("auto", 5, four), at::Device("cuda:1"));
  EXPECT_EQ(device_of("cuda:3", 0, four), at::Device("cuda:3"));
  EXPECT_EQ(device_of("cuda", std::nullopt, one), at::Device("cuda:0"));
  EXPECT_EQ(device_of("cuda:3", std::nullopt, four), at::Device("cuda:3"));
  EXPECT_EQ(device_of("auto", std::nullopt, none), at::Device("cpu"));
  EXPECT_EQ(device_of(nullptr, std::nullopt, four), at::Device("cpu"));
  EXPECT_THROW(device_of("cuda", std::nullopt, four), InvalidArgument);
  EXPECT_THROW(device_of("auto", std::nullopt, four), InvalidArgument);
}

// A view of a DLPack tensor of any strides, through which a collective writes.
TEST(C, DlpackTensorsAreViews) {
  const at::Tensor tensor = torch::arange(12, torch::kFloat).view({3, 4}).t().slice(0, 1, 3);
  DLManagedTensor* managed = at::toDLPack(tensor);
  lockstep_array array{};
  ASSERT_EQ(lockstep_array_from_dlpack(managed, &array), LOCKSTEP_OK) << lockstep_last_error();
  EXPECT_EQ(array.data, tensor.data_ptr());
  EXPECT_EQ(array.ndim, 2);
  EXPECT_EQ(array.shape[0], 2);
  EXPECT_EQ(array.strides[1], 4);
  EXPECT_EQ(array.dtype, LOCKSTEP_FLOAT32);
  lockstep_comm* comm = nullptr;
  ASSERT_EQ(lockstep_init(nullptr, &comm), LOCKSTEP_OK) << lockstep_last_error();
  EXPECT_EQ(lockstep_all_reduce(comm, &array, LOCKSTEP_SUM), LOCKSTEP_OK);
  EXPECT_EQ(lockstep_comm_free(comm), LOCKSTEP_OK);

  managed->dl_tensor.dtype.lanes = 2;
  EXPECT_EQ(lockstep_array_from_dlpack(managed, &array), LOCKSTEP_INVALID_ARGUMENT);
  managed->dl_tensor.dtype = {kDLComplex, 64, 1};
  EXPECT_EQ(lockstep_array_from_dlpack(managed, &array), LOCKSTEP_INVALID_ARGUMENT);
  managed->dl_tensor.dtype = {kDLBfloat, 16, 1};
  EXPECT_EQ(lockstep_array_from_dlpack(managed, &array), LOCKSTEP_OK);
  EXPECT_EQ(array.dtype, LOCKSTEP_BFLOAT16);
  const auto refused = [&](DLDeviceType type, const char* words) {
    managed->dl_tensor.device.device_type = type;
    EXPECT_EQ(lockstep_array_from_dlpack(managed, &array), LOCKSTEP_INVALID_ARGUMENT) << words;
    const std::string line = lockstep_last_error();
    EXPECT_NE(line.find(words), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  };
  refused(kDLVulkan, "it is on Vulkan (DLPack's device type 7)");
  refused(kDLROCM, "it is on ROCm (DLPack's device type 10)");
  refused(kDLCUDAManaged, "it is on CUDA's managed memory");
  // The memory is the CPU's.
  const device::VisibleDevices visible = device::visible_devices();
  refused(kDLCUDA, !visible.has_cuda   ? "'cuda:0': this program's libtorch is a CPU build"
                   : visible.cuda == 0 ? "'cuda:0': this process sees no CUDA device"
                                       : "data is no memory of cuda:0");
  managed->dl_tensor.device.device_type = kDLCUDAHost;
  EXPECT_EQ(lockstep_array_from_dlpack(managed, &array), LOCKSTEP_OK) << lockstep_last_error();
  EXPECT_EQ(array.device_type, LOCKSTEP_CPU);
  managed->deleter(managed);

  DLManagedTensorVersioned* versioned = at::toDLPackVersioned(tensor);
  ASSERT_EQ(lockstep_array_from_dlpack_versioned(versioned, &array), LOCKSTEP_OK)
      << lockstep_last_error();
  EXPECT_EQ(array.data, tensor.data_ptr());
  versioned->version.major = 2;
  EXPECT_EQ(lockstep_array_from_dlpack_versioned(versioned, &array), LOCKSTEP_INVALID_ARGUMENT);
  versioned->deleter(versioned);
}

// A model that fails inside TorchScript, and one that returns two tensors.
TEST(CModel, ForwardReturnsSeveralTensorsOrFails) {
  torch::jit::Module module("Two");
  module.register_parameter("scale", torch::ones({1}, torch::kDouble).set_requires_grad(true),
                            false);
  module.define(R"(
def forward(self, x):
  assert x.size(0) != 3, "three is too many"
  return x * self.scale, x.sum()
)");
  const TestDirectory folder;
  const std::string path = folder / "two.pt";
  module.save(path);
  lockstep_model* model = nullptr;
  ASSERT_EQ(lockstep_model_load(path.c_str(), "cpu", &model), LOCKSTEP_OK) << lockstep_last_error();
  double values[3] = {1, 2, 3};
  int64_t size = 2;
  lockstep_array input{};
  input.data = values;
  input.shape = &size;
  input.ndim = 1;
  input.dtype = LOCKSTEP_FLOAT64;
  lockstep_array outputs[2] = {};
  ASSERT_EQ(lockstep_model_forward(model, &input, 1, outputs, 2), LOCKSTEP_OK)
      << lockstep_last_error();
  EXPECT_EQ(outputs[1].ndim, 0);
  EXPECT_EQ(*static_cast<double*>(outputs[1].data), 3);
  size = 3;
  EXPECT_EQ(lockstep_model_forward(model, &input, 1, outputs, 2), LOCKSTEP_TORCH_ERROR);
  EXPECT_NE(std::string(lockstep_last_error()).find("three is too many"), std::string::npos);
  EXPECT_EQ(lockstep_model_free(model), LOCKSTEP_OK);
}

// The result is the model's, and stays when the caller's array changes.
TEST(CModel, AnOutputThatIsTheInputIsCopied) {
  torch::jit::Module module("Same");
  module.define("def forward(self, x):\n  return x.view(-1)\n");
  const TestDirectory folder;
  const std::string path = folder / "same.pt";
  module.save(path);
  lockstep_model* model = nullptr;
  ASSERT_EQ(lockstep_model_load(path.c_str(), "cpu", &model), LOCKSTEP_OK) << lockstep_last_error();
  double values[2] = {1, 2};
  const int64_t size = 2;
  lockstep_array input{};
  input.data = values;
  input.shape = &size;
  input.ndim = 1;
  input.dtype = LOCKSTEP_FLOAT64;
  lockstep_array output{};
  ASSERT_EQ(lockstep_model_forward(model, &input, 1, &output, 1), LOCKSTEP_OK)
      << lockstep_last_error();
  values[1] = 7;
  EXPECT_NE(output.data, values);
  EXPECT_EQ(static_cast<double*>(output.data)[1], 2);
  EXPECT_EQ(lockstep_model_free(model), LOCKSTEP_OK);
}

}  // namespace
}  // namespace lockstep::inline v0::c_test
