#include <lockstep/core/env.h>

#include <cstdio>

int main() {
  std::puts("lockstep::lockstep, from the installed package");
  return lockstep::parse_int("42") == 42 ? 0 : 1;
}
