// Grey pictures from files, and on a terminal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::engine {

struct GreyImage {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> pixels;  // row by row, 0: background
};

// Picture `index` of a file: an idx file of one picture or many (plain or gzip), or a PGM file (P2
// or P5, index 0; values are scaled to 0..255). Throws DataError that names the file: missing,
// another format, damaged, no picture of that index.
GreyImage read_image(const std::filesystem::path& path, int64_t index);

// The bytes of a PGM file. Throws as above; never takes more memory than the bytes have pixels.
GreyImage parse_pgm(std::string_view bytes, const std::string& file);

// The picture in characters, two a pixel, without its empty margin; lines end with '\n'.
std::string draw_image(const GreyImage& image);

}  // namespace lockstep::engine
