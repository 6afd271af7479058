// Reads pictures from files, and draws them on a terminal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0::engine {

struct Picture {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> pixels;  // channel by channel, each row by row; 0: dark
  int64_t channels = 1;         // 1: grey; 3: red, green, blue
};

// Reads picture `index` of a file: an idx file of one picture or many, CIFAR-10's records (a name
// that ends in .bin), each plain or gzip, or a PGM or PPM file (P2, P5, P3, P6; index 0; values are
// scaled to 0..255).
// Throws: DataError that names the file: missing, another format, damaged, no picture of that
// index.
Picture read_image(const std::filesystem::path& path, int64_t index);

// Reads the bytes of a PGM or PPM file.
// Throws: as read_image().
// Cost: never more memory than the bytes have pixels.
Picture parse_pnm(std::string_view bytes, const std::string& file);

// Draws the picture in characters, two for each pixel, without its dark margin; lines end with
// '\n'.
std::string draw_image(const Picture& image);

}  // namespace lockstep::inline v0::engine
