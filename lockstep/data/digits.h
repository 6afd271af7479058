// A built-in data set: handwritten-like digits, drawn by this code, in the format of MNIST, for
// experiments without a download: a small convolutional network learns it in an epoch, and a linear
// model does clearly worse.
//
// Method: each digit has a few ways of writing it, given as pen strokes; a sample picks one, moves
// its control points, bends it with smooth waves, applies a random affine map, draws it with a pen
// of random width, pressure and contrast, and adds noise and at times a stray stroke. The bytes
// depend only on the options, not on the machine, the standard library or libtorch: it uses integer
// hashing, and floating point restricted to + - * / and sqrt in a fixed order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::data {

// The options of generate_digits().
struct DigitsOptions {
  int64_t train = 12000;  // samples; about 0.1 ms each to make
  int64_t test = 2000;    // samples of the test set
  int64_t seed = 1234;    // of all that is drawn
};

// Pictures and their labels.
struct Digits {
  std::vector<uint8_t> images;  // [count, 28, 28], 0 = background
  std::vector<uint8_t> labels;  // [count], 0..9
};

// Which of the two sets.
enum class DigitsSplit { kTrain, kTest };

// `count` samples of a split. Sample i depends on seed, split and i alone. Thread-safe.
// Throws: InvalidArgument for a negative count.
LOCKSTEP_API Digits render_digits(int64_t count, int64_t seed, DigitsSplit split);

// Makes `directory` (and its parents) where needed, and in it the four idx files that mnist()
// reads, and digits.txt, which records how they were made. Returns false, having changed nothing,
// if the directory already has the data set of these options; one of other options is replaced.
// Several processes may call it at once: they take turns.
// Throws: InvalidArgument for counts outside 1..10,000,000, and if the directory has MNIST files
// that were not made here (they stay unchanged); SystemError if a file cannot be written; Timeout
// if another process holds the directory for more than a minute.
LOCKSTEP_API bool generate_digits(const std::filesystem::path& directory,
                                  const DigitsOptions& options = {});

}  // namespace lockstep::inline v0::data
