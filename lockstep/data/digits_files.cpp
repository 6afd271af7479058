// generate_digits(): the files around render_digits().
#include <array>
#include <string>

#include "lockstep/data/digits.h"
#include "lockstep/data/idx.h"
#include "lockstep/data/internal/generated_files.h"

namespace lockstep::inline v0::data {
namespace {

namespace fs = std::filesystem;

struct Part {
  std::string stem;
  DigitsSplit split;
  int64_t count;

  fs::path images(const fs::path& directory) const {
    return directory / (stem + "-images-idx3-ubyte");
  }
  fs::path labels(const fs::path& directory) const {
    return directory / (stem + "-labels-idx1-ubyte");
  }

  bool complete(const fs::path& directory) const {
    std::error_code none;
    return fs::file_size(images(directory), none) == static_cast<uintmax_t>(16 + count * 28 * 28) &&
           fs::file_size(labels(directory), none) == static_cast<uintmax_t>(8 + count);
  }
  void write(const fs::path& directory, int64_t seed) const {
    const Digits digits = render_digits(count, seed, split);
    write_idx(images(directory), std::array<int64_t, 3>{count, 28, 28}, digits.images);
    write_idx(labels(directory), std::array<int64_t, 1>{count}, digits.labels);
  }
};

}  // namespace

bool generate_digits(const fs::path& directory, const DigitsOptions& options) {
  for (const int64_t count : {options.train, options.test})
    check_generated_count("generate_digits", count);
  const Part train{"train", DigitsSplit::kTrain, options.train},
      test{"t10k", DigitsSplit::kTest, options.test};
  return generate_files(
      directory,
      {.record = "digits.txt",
       .heading = "Lockstep digits, version 1\n",
       .options = "train " + std::to_string(options.train) + "\ntest " +
                  std::to_string(options.test) + "\nseed " + std::to_string(options.seed) + "\n",
       .ours = "Lockstep digits",
       .complete = [&] { return train.complete(directory) && test.complete(directory); },
       .write =
           [&] {
             train.write(directory, options.seed);
             test.write(directory, options.seed);
           },
       .foreign =
           [](const std::string& name) {
             for (const char* stem :
                  {"train-images", "train-labels", "t10k-images", "t10k-labels"}) {
               if (name.starts_with(stem)) return true;
             }
             return false;
           }});
}

}  // namespace lockstep::inline v0::data
