// Streams and memory of the simulated devices. Private to the simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "clock.h"

namespace simulated {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

// --- streams ---------------------------------------------------------------------------------------------------------
/// What a stream has reached; waited for by streams and by the host.
struct Marker;
using MarkerPtr = std::shared_ptr<Marker>;

int currentDevice();
void setCurrentDevice(int device);
/// Of this thread.
int currentStream(int device);
int exchangeStream(int device, int stream);
int poolStream(int device);
/// One that no other call returns: what waits there holds up nobody else.
int ownStream(int device);
c10::Stream streamOf(int device, int stream);

/// Enqueues; the accesses are judged now. What a job throws is thrown by the next host wait of its device.
void enqueue(int device, int stream, const char* name, const std::vector<Access>& accesses, std::function<void()> job);
MarkerPtr record(int device, int stream);
void block(const MarkerPtr& marker, int device, int stream);
bool isReached(const MarkerPtr& marker);
void waitFor(const MarkerPtr& marker);
void waitForStream(int device, int stream);
void waitForDevice(int device, bool throws = true);
bool isIdle(int device, int stream);

// --- graphs ----------------------------------------------------------------------------------------------------------
/// What a stream was given while it was captured. Nothing of it ran.
struct Capture {
  int device = 0, stream = 0;
  uint64_t pool = 0;   // of memory
  uint64_t drawn = 0;  // how far its kernels move the default generator
  bool is_broken = false;
  struct Node {
    const char* name;
    std::vector<Access> accesses;
    std::vector<std::pair<const void*, uint64_t>> allocations;  // of others than the pool: those that it touches
    std::function<void()> job;
  };
  std::vector<Node> nodes;
};
/// From now on the stream belongs to the capture, whoever works on it.
void beginCapture(const std::shared_ptr<Capture>& capture);
void endCapture(const Capture& capture);
/// Of the current stream of a device; null: it is not captured.
Capture* currentCapture(int device);
bool isCaptured(int device, int stream);
/// Enqueues all of it once more.
void replay(const Capture& capture, int stream);

// --- memory ----------------------------------------------------------------------------------------------------------
/// Where kernels find what a tensor's address names; null for memory of others.
void* twin(const void* address);
int deviceOf(const void* address);
/// Copies of streams that will read pinned memory: some more, or fewer.
void noteReader(const void* address, int64_t more);
bool hasReaders(const void* address);
bool isPinned(const void* address);
c10::Allocator* pinnedAllocator();
/// The stream will use the memory: it is reused only after what is enqueued there when it is freed.
void recordStream(const void* address, int device, int stream);
/// Which allocation an address lies in; 0: in none, or in one of the pool. Memory that comes later has another number.
uint64_t allocationOf(const void* address, uint64_t pool);
/// Pools of captures: what is allocated on their streams stays theirs as long as anybody holds the pool.
void holdPool(uint64_t pool);
void dropPool(uint64_t pool);

}  // namespace simulated
