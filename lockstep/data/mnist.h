// MNIST and data sets in its format: Fashion-MNIST, KMNIST, generate_digits().
#pragma once

#include <cstdint>
#include <filesystem>

#include "lockstep/core/export.h"
#include "lockstep/data/image_dataset.h"

namespace lockstep::inline v0::data {

// The options of mnist().
struct MnistOptions {
  double mean = 0.1307;    // of pixels scaled to 0..1
  double stddev = 0.3081;  // likewise
  bool load_train = true;  // false: .train is empty and its files need not be there
  bool load_test = true;   // false: the same for .test
};

// The data sets that mnist() loads.
struct Mnist {
  ImageDataset train;  // images [N, 1, 28, 28], labels 0..9
  ImageDataset test;
};

// Loads the four idx files of a directory: train-images-idx3-ubyte, train-labels-idx1-ubyte,
// t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte. It also accepts the spelling
// train-images.idx3-ubyte, gzip files (.gz), and all of these in <path>/MNIST/raw, where
// torchvision puts them. Where both exist the plain file is used.
// Throws: DataError that names the file: missing, not idx (see idx.h), other than 28x28, another
// number of labels than images, or a label outside 0..9 (with its index).
LOCKSTEP_API Mnist mnist(const std::filesystem::path& path, const MnistOptions& options = {});

// The file with the images of the test set.
// Throws: DataError.
LOCKSTEP_API std::filesystem::path mnist_test_file(const std::filesystem::path& path);

// The numbers of samples.
struct MnistSizes {
  int64_t train = 0;
  int64_t test = 0;
};

// Checks for the errors of mnist() without keeping the images: milliseconds for plain files, the
// time to inflate them for gzip. For programs that check their input before they start ranks.
LOCKSTEP_API MnistSizes validate_mnist(const std::filesystem::path& path,
                                       const MnistOptions& options = {});

}  // namespace lockstep::inline v0::data
