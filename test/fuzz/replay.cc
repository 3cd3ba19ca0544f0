// In place of libFuzzer, for compilers without it: runs a target on every file of the folders that it is given. Fails
// where there is none, and where the target refuses them all: they are of an older format then (CONTRIBUTING.md says
// how to make them anew).
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "taken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  size_t files = 0;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream in(entry.path(), std::ios::binary);
      const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      ++files;
    }
  std::printf("%zu files, %d taken\n", files, abele::test::taken);
  return files == 0 || abele::test::taken == 0;
}
