#include "lockstep/data/cifar10.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/data/internal/packed_file.h"

namespace lockstep::inline v0::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGiveFiles =
    "give CIFAR-10's binary files (data_batch_1.bin to data_batch_5.bin, test_batch.bin), or "
    "train*.bin and test*.bin in their form";

constexpr int64_t kPublishedBatches = 5;

struct Records {
  std::vector<uint8_t> images;  // without the labels
  std::vector<uint8_t> labels;
};

// Receives the bytes of one file in pieces of any size. Keeps labels, and images only if requested.
class RecordDecoder {
 public:
  RecordDecoder(std::string name, bool keep_images, Records& records)
      : name_(std::move(name)), keep_(keep_images), records_(records) {}

  void feed(std::span<const std::byte> piece) {
    while (!piece.empty()) {
      if (position_ == 0) {
        take_label(std::to_integer<uint8_t>(piece.front()));
        piece = piece.subspan(1);
      }
      const auto part =
          piece.first(std::min(piece.size(), static_cast<size_t>(kCifar10Record - position_)));
      if (keep_) {
        const auto* first = reinterpret_cast<const uint8_t*>(part.data());
        records_.images.insert(records_.images.end(), first, first + part.size());
      }
      position_ = (position_ + static_cast<int64_t>(part.size())) % kCifar10Record;
      piece = piece.subspan(part.size());
    }
  }

  void finish() const {
    if (position_ != 0) {
      refuse_file(name_, "truncated: ends after byte " + std::to_string(position_) + " of the " +
                             std::to_string(kCifar10Record) + " of record " +
                             std::to_string(count_ - 1) + kFetchAgain);
    }
    if (count_ == 0) refuse_file(name_, std::string("holds no images; ") + kGiveFiles);
  }

 private:
  void take_label(uint8_t label) {
    if (label >= kCifar10Classes) {
      refuse_file(name_, "label " + std::to_string(label) + " of record " + std::to_string(count_) +
                             " is outside 0..9; " + kGiveFiles);
    }
    records_.labels.push_back(label);
    position_ = 1;
    ++count_;
  }

  const std::string name_;
  const bool keep_;
  Records& records_;
  int64_t position_ = 0;  // bytes of the current record
  int64_t count_ = 0;     // records begun
};

Records read_records(const std::vector<fs::path>& files, bool keep_images) {
  Records records;
  for (const fs::path& file : files) {
    RecordDecoder decoder(file.string(), keep_images, records);
    read_unpacked(file, kGiveFiles, [&](std::span<const std::byte> piece) { decoder.feed(piece); });
    decoder.finish();
  }
  return records;
}

// stem.bin or stem.bin.gz; empty if neither exists.
fs::path bin_file(const fs::path& directory, const std::string& stem) {
  std::error_code ignored;
  for (const char* ending : {".bin", ".bin.gz"}) {
    fs::path candidate = directory / (stem + ending);
    if (fs::exists(candidate, ignored)) return candidate;
  }
  return {};
}

// All <prefix>*.bin and .bin.gz, sorted by name, each once.
std::vector<fs::path> bin_files(const fs::path& directory, const std::string& prefix) {
  std::map<std::string, fs::path> found;
  std::error_code error;
  for (auto it = fs::directory_iterator(directory, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    for (const std::string& ending : {std::string(".bin"), std::string(".bin.gz")}) {
      if (!name.ends_with(ending)) continue;
      const std::string stem = name.substr(0, name.size() - ending.size());
      found[stem] = bin_file(directory, stem);
    }
  }
  if (error) refuse_file(directory.string(), "cannot be read: " + error.message());
  std::vector<fs::path> files;
  for (auto& [stem, file] : found) files.push_back(std::move(file));
  return files;
}

struct Layout {
  fs::path directory;  // the directory of batches.meta.txt
  std::vector<fs::path> train, test;
  bool split = false;  // `train` is one file that holds both sets
};

Layout published_layout(const fs::path& directory, const Cifar10Options& options) {
  Layout layout{.directory = directory, .train = {}, .test = {}};
  const auto need = [&](const std::string& stem) {
    fs::path file = bin_file(directory, stem);
    if (file.empty()) {
      refuse_file((directory / (stem + ".bin")).string(),
                  std::string("no such file, plain or .gz; ") + kGiveFiles);
    }
    return file;
  };
  for (int64_t i = 1; options.load_train && i <= kPublishedBatches; ++i)
    layout.train.push_back(need("data_batch_" + std::to_string(i)));
  if (options.load_test) layout.test.push_back(need("test_batch"));
  return layout;
}

Layout find_layout(const fs::path& path, const Cifar10Options& options) {
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    refuse_file(path.string(), std::string("no such file or directory; ") + kGiveFiles);
  if (!fs::is_directory(path, ignored)) {
    Layout layout{.directory = path.parent_path(), .train = {}, .test = {}};
    (options.load_train ? layout.train : layout.test).push_back(path);
    layout.split = options.load_train && options.load_test;
    return layout;
  }
  for (const fs::path& place : {path, path / "cifar-10-batches-bin"}) {
    const bool published =
        !bin_file(place, "data_batch_1").empty() || !bin_file(place, "test_batch").empty();
    if (published) return published_layout(place, options);
  }
  Layout layout{.directory = path, .train = {}, .test = {}};
  const auto need = [&](const std::string& prefix) {
    auto files = bin_files(path, prefix);
    if (files.empty())
      refuse_file(path.string(), "holds no " + prefix + "*.bin, plain or .gz; " + kGiveFiles);
    return files;
  };
  if (options.load_train) layout.train = need("train");
  if (options.load_test) layout.test = need("test");
  return layout;
}

// The number of training records among `count` records of a file that holds both sets.
int64_t train_part(const fs::path& file, int64_t count) {
  if (count < 2) refuse_file(file.string(), "holds one image; training and testing need two");
  return count - (count + 9) / 10;
}

std::vector<std::string> read_classes(const fs::path& directory) {
  const fs::path path = directory / "batches.meta.txt";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return cifar10_classes();
  if (!fs::is_regular_file(path, ignored)) refuse_file(path.string(), "not a regular file");
  std::ifstream file(path);
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (names.size() != static_cast<size_t>(kCifar10Classes)) {
    refuse_file(path.string(), "names " + std::to_string(names.size()) +
                                   " classes, expected 10, one a line; correct or remove it");
  }
  return names;
}

struct Tensors {
  at::Tensor images, labels;

  ImageDataset part(int64_t begin, int64_t end, const Cifar10Options& options) const {
    return ImageDataset(images.narrow(0, begin, end - begin), labels.narrow(0, begin, end - begin),
                        options.mean, options.stddev);
  }
  int64_t size() const { return labels.size(0); }
};

Tensors read_tensors(const std::vector<fs::path>& files) {
  auto records = std::make_unique<Records>(read_records(files, /*keep_images=*/true));
  const auto count = static_cast<int64_t>(records->labels.size());
  Tensors tensors;
  tensors.labels = at::empty({count}, at::kLong);
  std::copy(records->labels.begin(), records->labels.end(),
            tensors.labels.mutable_data_ptr<int64_t>());
  Records* const owner = records.release();  // owned by the tensor from here on
  tensors.images = at::from_blob(
      owner->images.data(), {count, 3, kCifar10Side, kCifar10Side},
      [owner](void*) { delete owner; }, at::kByte);
  return tensors;
}

}  // namespace

Cifar10 cifar10(const fs::path& path, const Cifar10Options& options) {
  const Layout layout = find_layout(path, options);
  Cifar10 sets;
  sets.classes = read_classes(layout.directory);
  if (!layout.train.empty()) {
    const Tensors tensors = read_tensors(layout.train);
    const int64_t end = layout.split ? train_part(path, tensors.size()) : tensors.size();
    sets.train = tensors.part(0, end, options);
    if (layout.split) sets.test = tensors.part(end, tensors.size(), options);
  }
  if (!layout.test.empty()) {
    const Tensors tensors = read_tensors(layout.test);
    sets.test = tensors.part(0, tensors.size(), options);
  }
  return sets;
}

Cifar10Sizes validate_cifar10(const fs::path& path, const Cifar10Options& options) {
  const Layout layout = find_layout(path, options);
  read_classes(layout.directory);
  const auto count = [](const std::vector<fs::path>& files) {
    return static_cast<int64_t>(read_records(files, /*keep_images=*/false).labels.size());
  };
  Cifar10Sizes sizes{.train = count(layout.train), .test = count(layout.test)};
  if (layout.split) {
    const int64_t all = sizes.train;
    sizes.train = train_part(path, all);
    sizes.test = all - sizes.train;
  }
  return sizes;
}

fs::path cifar10_test_file(const fs::path& path) {
  return find_layout(path, {.load_train = false}).test.front();
}

const std::vector<std::string>& cifar10_classes() {
  static const std::vector<std::string> names{"airplane", "automobile", "bird",  "cat",  "deer",
                                              "dog",      "frog",       "horse", "ship", "truck"};
  return names;
}

}  // namespace lockstep::inline v0::data
