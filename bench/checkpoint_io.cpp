// Writing and reading a model of BERT-base's size (418 MiB of float32): one side of
// checkpoint_io.py, which runs the other, Python's safetensors, in turns. checkpoint_io FOLDER
// reads commands from stdin and answers each with the seconds it took:
//   save   write_safetensors(): checksum and fsync included
//   load   read_safetensors(): mapped
//   read   the same, and every value is added up
//   check  the same as load, with the checksum compared
//   sum    adding up alone, of tensors in memory
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include "lockstep/checkpoint/safetensors.h"

namespace {

using lockstep::NamedTensors;

NamedTensors bert_base() {
  constexpr int64_t kHidden = 768, kInner = 3072;
  NamedTensors tensors;
  const auto add = [&](const std::string& name, at::IntArrayRef sizes) {
    tensors.emplace_back(name, at::randn(sizes));
  };
  add("word", {30522, kHidden});
  add("pos", {512, kHidden});
  add("type", {2, kHidden});
  add("pool.w", {kHidden, kHidden});
  for (const char* name : {"ln.w", "ln.b", "pool.b"}) add(name, {kHidden});
  for (int layer = 0; layer < 12; ++layer) {
    const std::string prefix = std::to_string(layer) + ".";
    for (const char* name : {"q", "k", "v", "o"}) {
      add(prefix + name + ".w", {kHidden, kHidden});
      add(prefix + name + ".b", {kHidden});
    }
    add(prefix + "up.w", {kInner, kHidden});
    add(prefix + "up.b", {kInner});
    add(prefix + "down.w", {kHidden, kInner});
    for (const char* name : {"down.b", "ln1.w", "ln1.b", "ln2.w", "ln2.b"})
      add(prefix + name, {kHidden});
  }
  return tensors;
}

double sum_of(const NamedTensors& tensors) {
  double sum = 0;
  for (const auto& [name, tensor] : tensors) sum += tensor.sum().item<double>();
  return sum;
}

void serve(const std::filesystem::path& folder) {
  at::set_num_threads(1);
  const NamedTensors tensors = bert_base();
  const auto path = folder / "lockstep.safetensors";
  lockstep::FileSum written;
  double kept = 0;  // so that no sum is left out
  for (std::string command; std::getline(std::cin, command);) {
    if (command == "save") std::filesystem::remove(path);
    const auto begin = std::chrono::steady_clock::now();
    if (command == "save")
      written = lockstep::write_safetensors(path, tensors, {{"format", "pt"}});
    else if (command == "load")
      kept += static_cast<double>(lockstep::read_safetensors(path).tensors.size());
    else if (command == "read")
      kept += sum_of(lockstep::read_safetensors(path).tensors);
    else if (command == "check")
      kept += static_cast<double>(lockstep::read_safetensors(path, written).tensors.size());
    else
      kept += sum_of(tensors);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%.6f\n", seconds.count());
    std::fflush(stdout);
  }
  std::fprintf(stderr, "checkpoint_io: done (%g)\n", kept);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: checkpoint_io FOLDER; see bench/checkpoint_io.py\n", stderr);
    return 2;
  }
  try {
    serve(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_io: %s\n", error.what());
    return 1;
  }
}
