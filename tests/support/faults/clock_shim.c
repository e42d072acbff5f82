/* An LD_PRELOAD library: the wall clock of one process, shifted by a number of microseconds that is
 * read from a mapped file at each call. Durations (CLOCK_MONOTONIC) are left alone. The kernel is
 * asked directly, since looking up the functions shadowed here may itself need memory and thus the
 * time, which is how libfaketime hangs redis-server. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_us;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("WALL_CLOCK_OFFSET_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *offset_us, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) offset_us = page;
}

static int64_t now_us(clockid_t clock, long *rest_ns) {
    struct timespec real;
    syscall(SYS_clock_gettime, clock, &real);
    *rest_ns = real.tv_nsec % 1000;
    return real.tv_sec * INT64_C(1000000) + real.tv_nsec / 1000 + (offset_us ? *offset_us : 0);
}

int clock_gettime(clockid_t clock, struct timespec *result) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return syscall(SYS_clock_gettime, clock, result);
    long rest_ns;
    int64_t us = now_us(clock, &rest_ns);
    result->tv_sec = us / 1000000;
    result->tv_nsec = us % 1000000 * 1000 + rest_ns;
    return 0;
}

int gettimeofday(struct timeval *restrict result, void *restrict zone) {
    (void)zone;
    long rest_ns;
    int64_t us = now_us(CLOCK_REALTIME, &rest_ns);
    result->tv_sec = us / 1000000;
    result->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *result) {
    long rest_ns;
    time_t seconds = now_us(CLOCK_REALTIME, &rest_ns) / 1000000;
    if (result) *result = seconds;
    return seconds;
}
