// A built-in data set in the format of CIFAR-10: pictures of ten simple shapes and patterns in
// random colours, drawn by this code, for experiments without a download.
//
// Method: each sample draws two sufficiently different colours, a place and a size, covers the
// pixels of its class, and adds a gradient of light and noise. It uses integer arithmetic only: the
// bytes depend on the options, not on the machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::data {

// The options of generate_shapes().
struct ShapesOptions {
  int64_t train = 5000;  // samples
  int64_t test = 1000;   // samples of the test set
  int64_t seed = 1234;   // of all that is drawn
};

// Which of the two sets.
enum class ShapesSplit { kTrain, kTest };

// `count` samples of a split as CIFAR-10's records (cifar10.h). Sample i depends on seed, split and
// i alone. Thread-safe.
// Throws: InvalidArgument for a negative count.
LOCKSTEP_API std::vector<uint8_t> render_shapes(int64_t count, int64_t seed, ShapesSplit split);

// Makes `directory` (and its parents) where needed, and in it train.bin, test.bin and
// batches.meta.txt, which cifar10() reads, and shapes.txt, which records how they were made.
// Otherwise as generate_digits().
LOCKSTEP_API bool generate_shapes(const std::filesystem::path& directory,
                                  const ShapesOptions& options = {});

}  // namespace lockstep::inline v0::data
