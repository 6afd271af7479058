#include "lockstep/cli/engine/inference/image_file.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>
#include <sstream>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/data/cifar10.h"
#include "lockstep/data/idx.h"

namespace lockstep::inline v0::engine {
namespace {

// Takes words between white space, and comments, off the front of a PGM or PPM file.
class PnmReader {
 public:
  PnmReader(std::string_view bytes, const std::string& file) : rest_(bytes), file_(file) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(file_ + ": " + what + "; the PGM or PPM file is damaged");
  }

  std::string_view word() {
    skip_space();
    size_t length = 0;
    while (length < rest_.size() && !is_space(rest_[length])) ++length;
    const std::string_view result = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return result;
  }
  int64_t number(const char* what, int64_t low, int64_t high) {
    const auto value = parse_int(word(), low, high);
    if (!value)
      fail(std::string("its ") + what + " is not a number from " + std::to_string(low) + " to " +
           std::to_string(high));
    return *value;
  }
  // Returns the bytes after the one space behind the header.
  std::string_view raster() const { return rest_.empty() ? rest_ : rest_.substr(1); }

 private:
  static bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
  void skip_space() {
    while (!rest_.empty() && (is_space(rest_[0]) || rest_[0] == '#')) {
      rest_.remove_prefix(rest_[0] == '#' ? std::min(rest_.find('\n'), rest_.size()) : 1);
    }
  }

  std::string_view rest_;
  const std::string& file_;
};

void check_index(int64_t index, int64_t count, const std::string& file) {
  if (index >= 0 && index < count) return;
  throw DataError(file + ": has " + std::to_string(count) + " pictures, so there is no number " +
                  std::to_string(index));
}

Picture record_of(const std::filesystem::path& path, int64_t index) {
  const at::Tensor images = data::cifar10(path, {.load_train = false}).test.images();
  check_index(index, images.size(0), path.string());
  Picture image{images.size(2), images.size(3), {}, images.size(1)};
  const int64_t size = image.channels * image.height * image.width;
  const uint8_t* first = images.const_data_ptr<uint8_t>() + index * size;
  image.pixels.assign(first, first + size);
  return image;
}

Picture image_of(const data::IdxArray& array, int64_t index, const std::string& file) {
  const size_t dims = array.dims.size();
  if (dims != 2 && dims != 3)
    throw DataError(file + ": has " + std::to_string(dims) + " dims; pictures have 2 or 3");
  const int64_t count = dims == 3 ? array.dims[0] : 1;
  check_index(index, count, file);
  Picture image{array.dims[dims - 2], array.dims[dims - 1], {}, 1};
  const auto first = array.values.begin() + index * image.height * image.width;
  image.pixels.assign(first, first + image.height * image.width);
  return image;
}

}  // namespace

Picture parse_pnm(std::string_view bytes, const std::string& file) {
  constexpr int64_t kLongestSide = 65536;
  PnmReader reader(bytes, file);
  const std::string_view magic = reader.word();
  if (magic != "P2" && magic != "P3" && magic != "P5" && magic != "P6")
    reader.fail("it begins with none of P2, P3, P5 and P6");
  const bool text = magic == "P2" || magic == "P3";
  Picture image;
  image.channels = magic == "P3" || magic == "P6" ? 3 : 1;
  image.width = reader.number("width", 1, kLongestSide);
  image.height = reader.number("height", 1, kLongestSide);
  const int64_t most = reader.number("maximum", 1, 65535);
  const auto scaled = [most](int64_t value) {
    return static_cast<uint8_t>((std::min(value, most) * 255 + most / 2) / most);
  };
  const int64_t pixels = image.width * image.height, values = pixels * image.channels;
  if (values > static_cast<int64_t>(bytes.size())) reader.fail("it ends before its last pixel");
  const std::string_view raster = text ? std::string_view() : reader.raster();
  const size_t bytes_each = most > 255 ? 2 : 1;
  if (!text && raster.size() < static_cast<size_t>(values) * bytes_each)
    reader.fail("it ends before its last pixel");
  image.pixels.resize(static_cast<size_t>(values));
  // The file has the channels of a pixel side by side.
  for (int64_t i = 0; i < values; ++i) {
    int64_t value = 0;
    if (text) {
      value = reader.number("pixel", 0, most);
    } else {
      const size_t at = static_cast<size_t>(i) * bytes_each;
      value = static_cast<uint8_t>(raster[at]);
      if (bytes_each == 2) value = value * 256 + static_cast<uint8_t>(raster[at + 1]);
    }
    image.pixels[static_cast<size_t>(i % image.channels * pixels + i / image.channels)] =
        scaled(value);
  }
  return image;
}

Picture read_image(const std::filesystem::path& path, int64_t index) {
  const std::string file = path.string();
  // Opening a FIFO would wait.
  std::error_code ignored;
  std::ifstream stream;
  if (std::filesystem::is_regular_file(path, ignored)) stream.open(path, std::ios::binary);
  char magic[2] = {};
  if (!stream.is_open())
    throw DataError(file + ": cannot be read; give an idx, PGM, PPM or CIFAR-10 file");
  if (file.ends_with(".bin") || file.ends_with(".bin.gz")) return record_of(path, index);
  stream.read(magic, 2);
  if (magic[0] != 'P') return image_of(data::read_idx(path), index, file);
  if (index != 0)
    throw DataError(file + ": a PGM or PPM file has one picture, so there is no number " +
                    std::to_string(index));
  std::ostringstream text;
  text << "P" << magic[1] << stream.rdbuf();
  return parse_pnm(text.str(), file);
}

std::string draw_image(const Picture& image) {
  static constexpr std::string_view kRamp = " .:-=+*#%@";
  constexpr int kFaint = 32;  // margins darker than this are left out
  // The weights of ITU-R BT.601 give the brightness for an eye.
  const auto light = [&](int64_t y, int64_t x) {
    const auto value = [&](int64_t channel) {
      return int{image.pixels[static_cast<size_t>((channel * image.height + y) * image.width + x)]};
    };
    if (image.channels == 1) return value(0);
    return (299 * value(0) + 587 * value(1) + 114 * value(2)) / 1000;
  };
  int64_t top = image.height, bottom = -1, left = image.width, right = -1;
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x) {
      if (light(y, x) < kFaint) continue;
      top = std::min(top, y), bottom = std::max(bottom, y);
      left = std::min(left, x), right = std::max(right, x);
    }
  }
  std::string text;
  for (int64_t y = top; y <= bottom; ++y) {
    std::string line;
    for (int64_t x = left; x <= right; ++x) {
      const size_t level = static_cast<size_t>(light(y, x)) * kRamp.size() / 256;
      line.append(2, kRamp[level]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += "  " + line + '\n';
  }
  return text;
}

}  // namespace lockstep::inline v0::engine
