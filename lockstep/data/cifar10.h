// CIFAR-10's binary version, and data sets in its format: generate_shapes().
//
// A file is a row of records without a header: 1 byte label (0..9), then 1,024 bytes red, 1,024
// green, 1,024 blue, each 32x32 row by row. Source of the format:
// https://www.cs.toronto.edu/~kriz/cifar.html (A. Krizhevsky).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/data/image_dataset.h"

namespace lockstep::inline v0::data {

inline constexpr int64_t kCifar10Side = 32;                                     // pixels
inline constexpr int64_t kCifar10Classes = 10;                                  // labels 0 to 9
inline constexpr int64_t kCifar10Record = 1 + 3 * kCifar10Side * kCifar10Side;  // bytes

// The options of cifar10().
struct Cifar10Options {
  // Mean and standard deviation of each channel's pixels, scaled to 0..1, in CIFAR-10's training
  // set.
  std::vector<double> mean = {0.4914, 0.4822, 0.4465};
  std::vector<double> stddev = {0.2470, 0.2435, 0.2616};  // likewise
  bool load_train = true;  // false: .train is empty and its files need not be there
  bool load_test = true;   // false: the same for .test
};

// The data sets that cifar10() loads.
struct Cifar10 {
  ImageDataset train;  // images [N, 3, 32, 32], labels 0..9
  ImageDataset test;
  std::vector<std::string> classes;  // ten names
};

// Loads a directory or a file; all files may be plain or gzip (.gz), and the plain one is used
// where both exist.
// - CIFAR-10 as published: data_batch_1.bin to data_batch_5.bin and test_batch.bin, in `path` or in
//   its cifar-10-batches-bin.
// - Otherwise all train*.bin of the directory, in order of their names, and all test*.bin.
// - One file: its last tenth (rounded up) is the test set. Where only one of the two sets is to be
//   loaded, the whole file is that set.
// batches.meta.txt, ten class names a line each, is optional.
// Throws: DataError that names the file: missing, truncated, empty, corrupt gzip, a label outside
// 0..9 (with its record).
LOCKSTEP_API Cifar10 cifar10(const std::filesystem::path& path, const Cifar10Options& options = {});

// The numbers of samples.
struct Cifar10Sizes {
  int64_t train = 0;
  int64_t test = 0;
};

// Checks for the errors of cifar10() without keeping the images: reads every file once.
LOCKSTEP_API Cifar10Sizes validate_cifar10(const std::filesystem::path& path,
                                           const Cifar10Options& options = {});

// The (first) file with the test set of `path`.
// Throws: DataError.
LOCKSTEP_API std::filesystem::path cifar10_test_file(const std::filesystem::path& path);

// The names of CIFAR-10's classes.
LOCKSTEP_API const std::vector<std::string>& cifar10_classes();

}  // namespace lockstep::inline v0::data
