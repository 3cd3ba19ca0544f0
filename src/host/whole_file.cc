#include "host/whole_file.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "base/error.h"

namespace abele::host {

std::string readWholeFile(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  std::ifstream in;
  if (!error) in.open(path, std::ios::binary);
  std::string bytes(error ? 0 : size, '\0');
  if (in.is_open()) in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ABELE_REQUIRE(in.is_open() && in.gcount() == static_cast<std::streamsize>(bytes.size()), E0712,
                {.what = "a file cannot be read",
                 .at = path,
                 .found = error ? error.message() : std::strerror(errno),
                 .remedy = "check that the file exists and may be read"});
  return bytes;
}

void writeWholeFile(const std::string& path, const std::string& bytes) {
  static std::atomic<int> count{0};
  const std::string partial = cat(path, ".", ::getpid(), ".", count++, ".part");
  std::ofstream out(partial, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(partial, path, error);
  if (out && !error) return;
  const std::string found = error ? error.message() : std::strerror(errno);
  std::filesystem::remove(partial, error);
  throwUser(ErrorCode::E0712, {.what = "a file cannot be written",
                               .at = path,
                               .found = found,
                               .remedy = "check the folder's permissions and the space on the disk"});
}

}  // namespace abele::host
