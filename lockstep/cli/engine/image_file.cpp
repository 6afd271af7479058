#include "lockstep/cli/engine/image_file.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>
#include <sstream>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/data/idx.h"

namespace lockstep::engine {
namespace {

// Takes whitespace-separated words and comments off the front of PGM text.
class PgmReader {
 public:
  PgmReader(std::string_view bytes, const std::string& file) : rest_(bytes), file_(file) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(file_ + ": " + what + "; the PGM file is damaged");
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
  // What follows the one space after the header.
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

GreyImage image_of(const data::IdxArray& array, int64_t index, const std::string& file) {
  const size_t dims = array.dims.size();
  if (dims != 2 && dims != 3)
    throw DataError(file + ": has " + std::to_string(dims) + " dims; pictures have 2 or 3");
  const int64_t count = dims == 3 ? array.dims[0] : 1;
  if (index < 0 || index >= count) {
    throw DataError(file + ": has " + std::to_string(count) + " pictures, so there is no number " +
                    std::to_string(index));
  }
  GreyImage image{array.dims[dims - 2], array.dims[dims - 1], {}};
  const auto first = array.values.begin() + index * image.height * image.width;
  image.pixels.assign(first, first + image.height * image.width);
  return image;
}

}  // namespace

GreyImage parse_pgm(std::string_view bytes, const std::string& file) {
  constexpr int64_t kLongestSide = 65536;
  PgmReader reader(bytes, file);
  const std::string_view magic = reader.word();
  if (magic != "P5" && magic != "P2") reader.fail("it begins with neither P5 nor P2");
  GreyImage image;
  image.width = reader.number("width", 1, kLongestSide);
  image.height = reader.number("height", 1, kLongestSide);
  const int64_t most = reader.number("maximum", 1, 65535);
  const auto scaled = [most](int64_t value) {
    return static_cast<uint8_t>((std::min(value, most) * 255 + most / 2) / most);
  };
  const int64_t pixels = image.width * image.height;
  if (pixels > static_cast<int64_t>(bytes.size())) reader.fail("it ends before its last pixel");
  if (magic == "P2") {
    for (int64_t i = 0; i < pixels; ++i)
      image.pixels.push_back(scaled(reader.number("pixel", 0, most)));
    return image;
  }
  const std::string_view raster = reader.raster();
  const int64_t bytes_each = most > 255 ? 2 : 1;
  if (static_cast<int64_t>(raster.size()) < pixels * bytes_each)
    reader.fail("it ends before its last pixel");
  for (int64_t i = 0; i < pixels; ++i) {
    int64_t value = static_cast<uint8_t>(raster[static_cast<size_t>(i * bytes_each)]);
    if (bytes_each == 2)
      value = value * 256 + static_cast<uint8_t>(raster[static_cast<size_t>(2 * i + 1)]);
    image.pixels.push_back(scaled(value));
  }
  return image;
}

GreyImage read_image(const std::filesystem::path& path, int64_t index) {
  const std::string file = path.string();
  std::ifstream stream(path, std::ios::binary);
  char magic[2] = {};
  if (!stream || std::filesystem::is_directory(path))
    throw DataError(file + ": cannot be read; give an idx or PGM file");
  stream.read(magic, 2);
  if (magic[0] != 'P') return image_of(data::read_idx(path), index, file);
  if (index != 0)
    throw DataError(file + ": a PGM file has one picture, so there is no number " +
                    std::to_string(index));
  std::ostringstream text;
  text << "P" << magic[1] << stream.rdbuf();
  return parse_pgm(text.str(), file);
}

std::string draw_image(const GreyImage& image) {
  static constexpr std::string_view kRamp = " .:-=+*#%@";
  constexpr uint8_t kFaint = 32;  // margins darker than this are left out
  int64_t top = image.height, bottom = -1, left = image.width, right = -1;
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x) {
      if (image.pixels[static_cast<size_t>(y * image.width + x)] < kFaint) continue;
      top = std::min(top, y), bottom = std::max(bottom, y);
      left = std::min(left, x), right = std::max(right, x);
    }
  }
  std::string text;
  for (int64_t y = top; y <= bottom; ++y) {
    std::string line;
    for (int64_t x = left; x <= right; ++x) {
      const size_t level =
          image.pixels[static_cast<size_t>(y * image.width + x)] * kRamp.size() / 256;
      line.append(2, kRamp[level]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += "  " + line + '\n';
  }
  return text;
}

}  // namespace lockstep::engine
