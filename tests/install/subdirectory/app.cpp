#include <lockstep/core/env.h>

#include <cstdio>

int main() {
  std::puts("room lockstep::core, as a subdirectory");
  return lockstep::parse_int("42") == 42 ? 0 : 1;
}
